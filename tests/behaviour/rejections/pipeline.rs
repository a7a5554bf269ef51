//! Messages after a rejection in the same pipeline never run: they cause no admission and raise no token.

use crate::support::fenced::{Fenced, code_in, ok};
use crate::support::message;

const POLICIES: &str = "
version: 1
resources:
  - {name: jobs, tables: [public.jobs]}
  - {name: reports, tables: [public.reports]}
";

#[test]
fn skipped_statements_raise_no_fence() {
    // For the second statement, the proxy does not first check the role, which would wait for pending answers.
    for skipped in ["INSERT INTO reports VALUES (6)", "ALTER TABLE reports ADD more int"] {
        let world = Fenced::start("CREATE TABLE jobs (n int); CREATE TABLE reports (n int)", POLICIES);
        ok(&mut world.holder(7), "INSERT INTO jobs VALUES (7)");
        let mut stale = world.holder(6);
        let mut pipeline = message::unnamed("INSERT INTO jobs VALUES (6)", &[]);
        pipeline.extend(message::unnamed(skipped, &[]));
        pipeline.extend(message::sync());
        assert_eq!(code_in(&stale.exchange(&pipeline)), "LF001");
        assert_eq!(
            world.postgres.value("SELECT string_agg(resource, ' ') FROM fencegate_state.epoch"),
            "jobs",
            "{skipped}"
        );
        assert_eq!(
            world.postgres.value("SELECT count(*) FROM fencegate_state.admission WHERE resource = 'reports'"),
            "0"
        );
    }
}
