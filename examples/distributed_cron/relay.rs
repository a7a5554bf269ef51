//! A byte relay in front of etcd, in a separate process. Stopping the process simulates a network that delivers
//! nothing.

use std::io;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

#[derive(clap::Args)]
pub struct Relay {
    /// Address of the target: host:port
    target: String,
}

impl Relay {
    /// Listens on a free port, prints it, and relays until killed.
    pub async fn run(self) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (mut client, _) = listener.accept().await?;
            let target = self.target.clone();
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(target).await {
                    copy_bidirectional(&mut client, &mut server).await.ok();
                }
            });
        }
    }
}
