//! The harm that a stranger can do to other clients: floods and silence, each with a concurrent well-behaved client.
//! All of its requests must be answered in reasonable time.
//!
//! Each module is a class of floods, with its own servers and proxies. All traffic stays on this machine.

mod cancels;
mod churn;
mod connects;
mod flood;
mod http;
mod logins;
mod logs;
mod rooms;
