//! The harm that a stranger can do to other clients: floods and silence, each beside a well-behaved client. The tests
//! judge that client: all of its requests are answered while the flood runs, none of them unreasonably late.
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
