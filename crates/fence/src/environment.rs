//! Names of a database and its proxy, and services that databases share. The program supplies them.

use super::authority::Authority;
use super::background::Background;
use super::log_limit::LogLimit;
use super::metrics::FenceMetrics;
use std::sync::Arc;

/// The surroundings of one database.
#[derive(Debug)]
pub(super) struct Environment {
    /// The name of the database.
    pub(super) name: String,
    /// The id of this proxy process in the admissions that it grants. Unique to the process.
    pub(super) proxy: String,
    /// Confirms a token before it raises a fence whose policy names an election.
    pub(super) authority: Option<Arc<Authority>>,
    pub(super) metrics: FenceMetrics,
    /// The runtime for all work that queries the database.
    pub(super) background: Background,
    /// Limits the log when tokens are raised very often.
    pub(super) log_limit: Arc<LogLimit>,
}
