//! The statements of a reading of the catalog, for one set of policies and with parameters.

use super::names;
use super::sql::{self, Fenced, Subject, Views, settings};

/// The query text of one reading.
pub fn question(fences: Fenced, temporary: Option<&str>, views: Views) -> String {
    let subject = Subject::of(fences);
    let mut asked = vec![settings(temporary), sql::ways(&subject, temporary, views)];
    if let Some(keys) = &subject.keys {
        asked.extend([names::shadows(), names::query(keys)]);
    }
    asked.join("; ")
}

/// The statements of a reading, with parameters.
pub mod with_parameters {
    use crate::dependencies;
    use crate::names;
    use crate::sql::{self, Views};
    use crate::sql::{Keys, Subject};

    /// Ways to the tables `$1`, `$2`.
    pub fn ways() -> String {
        sql::ways(&Subject::parameters(false), None, Views::Asked)
    }

    /// Ways to these tables, and callers of the functions `$3`, `$4` and of those that begin with `$5`, `$6`.
    pub fn ways_and_calls() -> String {
        sql::ways(&Subject::parameters(true), None, Views::Asked)
    }

    /// The columns `$3` of the tables `$1`, `$2`, whose triggers have the arguments `$4`.
    pub fn key_columns() -> String {
        names::query(&Keys(["$1", "$2", "$3", "$4"].map(str::to_owned)))
    }

    /// Objects that CASCADE may drop from the tables `$1`, `$2`.
    pub fn dependencies() -> String {
        dependencies::query(&["$1", "$2"].map(str::to_owned))
    }

    pub use crate::names::shadows;
}
