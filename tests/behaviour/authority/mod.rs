//! The authority over tokens in etcd: only the leader's token raises a fence, a deposed leader is shut out before its
//! successor writes, and an operator can restore service after etcd was restored from a backup.

mod console;
mod databases;
mod outage;
mod privileges;
mod promotion;
mod reset;
mod secured;
mod settings;
mod single_key;
mod succession;
mod tokens;
mod users;
pub mod world;
