//! A cron on three nodes: one row per tick, whoever leads. See README.md beside this file, and show.py.

mod node;
mod relay;
mod shards;

use clap::Parser;
use std::error::Error;

#[derive(Parser)]
enum Arguments {
    /// One node of the cron
    Node(Box<node::Node>),
    /// One node of a cron with several shards
    Shards(Box<shards::Shards>),
    /// What stands between a node and etcd, to be stopped
    Relay(relay::Relay),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    match Arguments::parse() {
        Arguments::Node(node) => node.run().await,
        Arguments::Shards(shards) => match shards.run().await? {},
        Arguments::Relay(relay) => Ok(relay.run().await?),
    }
}
