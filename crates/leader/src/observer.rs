//! Observers: the leaders of an election as a stream.

use crate::{Error, Leader};
use futures_core::Stream;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::sleep;

/// Pause after an error, so that a coordinator that refuses immediately does not cause a busy loop.
const PAUSE: Duration = Duration::from_secs(1);

type Item = Result<Option<Leader>, Error>;

/// Reads the leader of one election.
pub(crate) trait Observe: Send + 'static {
    /// Returns the current leader at the first call and after an error; then whenever it may have changed.
    fn next(&mut self) -> impl Future<Output = Item> + Send;
}

/// A stream of the leaders of one election. It yields the current leader, then each change: another leader, no leader,
/// or another value of the leader. Changes in quick succession may be yielded as one.
///
/// If the coordinator cannot be read, it yields the error, and after a second reads everything again. It never ends.
pub struct Observer(Pin<Box<dyn Future<Output = (Item, Observer)> + Send>>);

impl Observer {
    pub(crate) fn new(source: impl Observe) -> Self {
        follow(source, None)
    }
}

fn follow(mut source: impl Observe, last: Option<Item>) -> Observer {
    Observer(Box::pin(async move {
        if matches!(last, Some(Err(_))) {
            sleep(PAUSE).await;
        }
        loop {
            let item = source.next().await;
            if item.is_err() || last.as_ref() != Some(&item) {
                return (item.clone(), follow(source, Some(item)));
            }
        }
    }))
}

impl Stream for Observer {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        let (item, next) = ready!(self.0.as_mut().poll(context));
        *self = next;
        Poll::Ready(Some(item))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Observer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::Instant;

    /// Reads these, then nothing.
    struct Reads(Vec<Item>);

    impl Observe for Reads {
        async fn next(&mut self) -> Item {
            if self.0.is_empty() { std::future::pending().await } else { self.0.remove(0) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_yielded_once_and_errors_pause() {
        let reads = vec![Ok(None), Ok(None), Err(Error::Gone), Err(Error::Gone), Ok(None)];
        let (mut observer, start) = (Observer::new(Reads(reads)), Instant::now());
        for expected in [(Ok(None), 0), (Err(Error::Gone), 0), (Err(Error::Gone), 1), (Ok(None), 2)] {
            let item = poll_fn(|context| Pin::new(&mut observer).poll_next(context)).await;
            assert_eq!((item, start.elapsed().as_secs()), (Some(expected.0), expected.1));
        }
    }
}
