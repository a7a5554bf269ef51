//! A cron on three nodes: one row per tick, whichever node leads. See README.md in this folder, and show.py.

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
    /// Relay between a node and etcd that can be stopped
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
