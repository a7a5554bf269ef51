//! What a stranger can do to others: floods and silence, each beside a client that behaves well. What is judged is that
//! client: all of its requests are answered while the flood runs, none of them late beyond reason.
//!
//! Each module is a class of floods, with servers and proxies of its own. All of it stays on this machine.

mod cancels;
mod churn;
mod connects;
mod flood;
mod http;
mod logins;
mod logs;
mod rooms;
