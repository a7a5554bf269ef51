//! What holds for each decoder, whatever its input. Each says whether the input was good.

pub mod bind;
pub mod fence_value;
pub mod frame;
pub mod message;
pub mod policy;
pub mod startup;
pub mod statement;
pub mod tokens;
