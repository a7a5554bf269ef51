//! The authority over tokens in etcd: only the leader's token raises a fence, a deposed leader is shut out before its
//! successor writes, and an operator can go back after etcd has.

mod console;
mod databases;
mod outage;
mod privileges;
mod reset;
mod secured;
mod settings;
mod single_key;
mod succession;
mod tokens;
mod users;
pub mod world;
