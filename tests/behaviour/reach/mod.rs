//! Indirect writes to a fenced table, as the catalog shows them, on real servers.

mod calls;
mod cascade;
mod definitions;
mod explain;
mod names;
mod paths;
mod readings;
mod stale;
mod temporary;
mod transaction;

/// Schema of `paths` and `explain`. docs/fence/policies.md shows a part of it.
const SCHEMA: &str = include_str!("schema.sql");
const POLICY: &str = "version: 1
resources:
  - name: jobs
    tables: [public.jobs]
  - name: low
    tables: [public.low_ticks]
  - name: items
    tables: [public.items]
";
