//! The command line of fencegate.

fn main() {}
