//! Faults of the whole system: crashes, failovers, stops, reloads, resets.

use super::client::Client;
use super::proxy::Proxy;
use super::sql::Table;
use super::store::State;
use super::unit::{Unit, write};
use super::world::{Dice, Disaster, World, pass};
use fencegate_fence::session::Token;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Time limit of an operator's wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// Triggers the disaster at some moment of the history, and repairs its effects before the end if possible.
pub async fn befall(world: Arc<World>, disaster: Disaster) {
    let mut dice = world.dice();
    pass(&mut dice, world.plan.length as usize).await;
    world.say(|| format!("{disaster:?}"));
    match disaster {
        Disaster::Restart => world.server.restart(),
        Disaster::Failover => fail_over(&world, &mut dice).await,
        Disaster::ProxyCrash => crash(&world, &mut dice).await,
        Disaster::ProxyStop => stop(&world, &mut dice).await,
        Disaster::Reload => reload(&world, &mut dice).await,
        Disaster::Reset => reset(&world, &mut dice).await,
        Disaster::ListenerLost => {
            if let Some(proxy) = world.some_proxy(&mut dice) {
                world.server.store.lose_connection(&proxy.name);
            }
        }
    }
}

/// The standby lags briefly, or for about the duration of a leadership.
async fn fail_over(world: &World, dice: &mut Dice) {
    world.server.replicate(world.judge.length());
    let lag = if dice.chance(50) { 60 } else { 1000 };
    pass(dice, lag).await;
    // The guard permits writes without querying the election.
    let is_elected_elsewhere = !world.plan.leases && !world.plan.guard;
    world.judge.failed_over(world.server.fail_over(), is_elected_elsewhere);
}

/// A new proxy replaces the crashed one.
async fn crash(world: &Arc<World>, dice: &mut Dice) {
    if let Some(proxy) = world.some_proxy(dice) {
        proxy.crash();
        pass(dice, 300).await;
        let another = Proxy::start(world);
        world.add_proxy(another);
    }
}

async fn stop(world: &World, dice: &mut Dice) {
    if let Some(proxy) = world.some_proxy(dice) {
        proxy.gate.set(State::Stopped);
        // If another proxy runs, this one may stay suspended until the faults end.
        let runs = world.proxies().iter().filter(|it| it.gate.state() == State::Runs).count();
        if runs > 0 && dice.chance(30) {
            return;
        }
        pass(dice, 3000).await;
        if !proxy.is_crashed() {
            world.say(|| format!("{} goes on", proxy.name));
            proxy.gate.set(State::Runs);
        }
    }
}

/// Reloads all proxies, one after the other.
async fn reload(world: &World, dice: &mut Dice) {
    for proxy in world.proxies() {
        tokio::spawn(async move { proxy.reload(1).await });
        pass(dice, 200).await;
    }
}

async fn reset(world: &Arc<World>, dice: &mut Dice) {
    let Some(proxy) = world.some_proxy(dice) else { return };
    let table = *dice.pick(&[Table::Jobs, Table::Ticks]);
    let epochs = world.server.store.epochs();
    let Some((_, epoch)) = epochs.iter().find(|(name, _)| name == table.name()) else { return };
    // A token that was issued. Its leader may still be alive.
    let token = world.judge.some_elected(dice).min(epoch.token);
    world.judge.reset();
    let force = dice.chance(70);
    // An operator does not wait for a proxy that has stopped.
    let is_reset = timeout(PATIENCE, proxy.reset(table.name(), token, force)).await;
    if matches!(is_reset, Ok(true)) && dice.chance(60) {
        timeout(PATIENCE, go_on(world, &proxy, token, table, dice)).await.ok();
    }
}

/// The leader to whose token a fence was reset writes again.
async fn go_on(world: &Arc<World>, proxy: &Arc<Proxy>, token: Token, table: Table, dice: &mut Dice) {
    let mut client = Client::connect(world, proxy, "the leader of before", Some(token.to_string()));
    if client.is_ready().await {
        let write = write(world, dice, table, client.ids.next());
        client.say(&[Unit::simple(vec![write])]).await;
        client.close();
    }
}
