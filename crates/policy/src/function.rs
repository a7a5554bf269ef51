//! The functions of a policy: each by its name, or all whose names begin alike.
//!
//! Must never miss one: a call without a schema may mean that of any schema, and a function counts as soon as it exists.

use super::{QualifiedName, quoted};
use fencegate_statement::FunctionName;
use std::fmt;

/// A function whose calls count as writes, or all whose names begin alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencedFunction {
    /// The name, or with `is_prefix` the prefix of the names. Never empty.
    pub name: QualifiedName,
    /// The policy has a `*` behind the name.
    pub is_prefix: bool,
}

impl FencedFunction {
    /// The call may be one of it.
    pub fn is_meant_by(&self, called: &FunctionName) -> bool {
        let is_named = match self.is_prefix {
            true => called.name.starts_with(&self.name.name),
            false => called.name == self.name.name,
        };
        is_named && called.schema.as_ref().is_none_or(|schema| *schema == self.name.schema)
    }

    /// The function that the call means, if it is one of these.
    pub fn called(&self, called: &FunctionName) -> Option<QualifiedName> {
        let name = || QualifiedName { schema: self.name.schema.clone(), name: called.name.clone() };
        self.is_meant_by(called).then(name)
    }
}

impl fmt::Display for FencedFunction {
    /// As in a policy.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_prefix { "*" } else { "" };
        write!(formatter, "{}.{}{star}", quoted(&self.name.schema), quoted(&self.name.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_matches_every_function_that_starts_with_it() {
        let name = QualifiedName { schema: "public".into(), name: "fetch_v".into() };
        let means = |is_prefix, schema: Option<&str>, called: &str| {
            let called = FunctionName { schema: schema.map(str::to_owned), name: called.into() };
            FencedFunction { name: name.clone(), is_prefix }.is_meant_by(&called)
        };
        for (schema, called, by_prefix, by_name) in [
            (None, "fetch_v", true, true),
            (None, "fetch_v2", true, false),
            (Some("public"), "fetch_v2", true, false),
            (Some("other"), "fetch_v2", false, false),
            (None, "fetch_", false, false),
            (None, "my_fetch_v", false, false),
        ] {
            assert_eq!((means(true, schema, called), means(false, schema, called)), (by_prefix, by_name), "{called}");
        }
    }
}
