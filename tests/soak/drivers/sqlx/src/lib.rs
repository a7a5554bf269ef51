//! The part of the output that both programs share.

/// The version of sqlx that Cargo.lock names.
pub fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let (_, package) = lock.split_once("name = \"sqlx\"\nversion = \"").unwrap();
    package.split('"').next().unwrap()
}
