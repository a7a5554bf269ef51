//! Shared by both programs.

/// The version of sqlx in Cargo.lock.
pub fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let (_, package) = lock.split_once("name = \"sqlx\"\nversion = \"").unwrap();
    package.split('"').next().unwrap()
}
