//! A server with a fenced `public.ticks`, and a console client.

use crate::support::ticks;
use crate::support::{Postgres, Proxy, Wire};
use tokio_postgres::{Client, NoTls};

pub struct World {
    pub proxy: Proxy,
    pub postgres: Postgres,
}

impl World {
    pub fn start() -> Self {
        let postgres = ticks::server();
        Self { proxy: ticks::proxy(&postgres), postgres }
    }

    /// A console session in the simple protocol.
    pub fn console(&self) -> Wire {
        console(&self.proxy)
    }

    /// A session that has written under the token.
    pub fn writer(&self, token: i64) -> Wire {
        let mut writer = ticks::session(&self.proxy.address(), token);
        ticks::ok(&mut writer, ticks::WRITE);
        writer
    }

    /// A console session in the extended protocol, with binary results.
    pub async fn driver(&self) -> Client {
        let (host, port) = self.proxy.address().host_and_port();
        let config = format!("host={host} port={port} user=postgres dbname=fencegate");
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

pub fn console(proxy: &Proxy) -> Wire {
    Wire::login(&proxy.address(), "postgres", "fencegate")
}
