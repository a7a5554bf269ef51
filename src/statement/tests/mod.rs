//! What statements do: tables of cases.
