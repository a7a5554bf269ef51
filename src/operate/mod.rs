//! Operation of a running proxy: the console and the status page.

pub mod console;
pub mod status;
