//! Fences: who may write now, and how it is made sure that nobody else does.

pub mod session;
