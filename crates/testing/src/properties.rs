//! Properties of each decoder for any input. Each `check` returns whether the input was valid.

pub mod bind;
pub mod fence_value;
pub mod frame;
pub mod message;
pub mod policy;
pub mod startup;
pub mod statement;
pub mod tokens;
