//! Values that hold for a while (tokens, logins): kept, renewed before they end, obtained once for all who wait.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::Error;

/// The most values kept at a time; those that end first make room.
const MAX_LEASES: usize = 1024;

/// A value and the time it holds for.
#[derive(Debug, Clone)]
pub(super) struct Lease<V> {
    pub(super) value: V,
    pub(super) obtained_at: Instant,
    /// When it should be renewed, and when it ends.
    terms: Option<(Instant, Instant)>,
}

impl<V> Lease<V> {
    /// A value that holds for `life` from now, or for good. It is renewed when four fifths of that are over.
    pub(super) fn new(value: V, life: Option<Duration>) -> Self {
        let obtained_at = Instant::now();
        Self {
            value,
            obtained_at,
            terms: life.map(|life| (obtained_at + life / 5 * 4, obtained_at + life)),
        }
    }

    fn is_fresh(&self, now: Instant) -> bool {
        self.terms.is_none_or(|(renew_at, _)| now < renew_at)
    }

    fn holds(&self, now: Instant) -> bool {
        self.terms.is_none_or(|(_, ends_at)| now < ends_at)
    }
}

type Outcome<V> = Result<Lease<V>, Error>;
type Flight<V> = BoxFuture<'static, Outcome<V>>;

struct Slot<V: Clone> {
    lease: Option<Lease<V>>,
    /// Weak: when all who waited are gone, a half-made request must not be found and continued much later.
    flight: Option<WeakShared<Flight<V>>>,
}

type Slots<K, V> = Arc<Mutex<HashMap<K, Slot<V>>>>;

/// The values of one kind, by key.
pub(super) struct Leases<K, V: Clone> {
    slots: Slots<K, V>,
}

impl<K, V> Leases<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new() -> Self {
        Self {
            slots: Arc::new(Mutex::new(HashMap::new())),
        }
    }

    /// The value of `key`; `obtain` is called when there is none fresh and nobody else is obtaining it.
    ///
    /// # Cancel safety
    /// Whoever still waits carries the request on.
    pub(super) async fn get(&self, key: &K, obtain: impl FnOnce() -> Flight<V>) -> Outcome<V> {
        let (flight, old) = {
            let mut slots = self.slots.lock();
            let now = Instant::now();
            make_room(&mut slots, key, now);
            let slot = slots.entry(key.clone()).or_insert(Slot {
                lease: None,
                flight: None,
            });
            if let Some(lease) = slot.lease.as_ref().filter(|lease| lease.is_fresh(now)) {
                return Ok(lease.clone());
            }
            let running = slot.flight.as_ref().and_then(WeakShared::upgrade);
            let flight = running.unwrap_or_else(|| {
                let flight = self.store_when_done(key.clone(), obtain());
                slot.flight = flight.downgrade();
                flight
            });
            (flight, slot.lease.clone())
        };
        match flight.await {
            // A renewal that fails takes nothing away from a value that still holds.
            Err(error) => old
                .filter(|old| error.is_outage() && old.holds(Instant::now()))
                .ok_or(error),
            done => done,
        }
    }

    /// Forgets the value of `key` that was obtained at that moment; a newer one stays.
    pub(super) fn forget(&self, key: &K, obtained_at: Instant) {
        if let Some(slot) = self.slots.lock().get_mut(key)
            && slot
                .lease
                .as_ref()
                .is_some_and(|lease| lease.obtained_at <= obtained_at)
        {
            slot.lease = None;
        }
    }

    fn store_when_done(&self, key: K, flight: Flight<V>) -> Shared<Flight<V>> {
        let slots = Arc::clone(&self.slots);
        async move {
            let outcome = flight.await;
            if let Some(slot) = slots.lock().get_mut(&key) {
                slot.flight = None;
                if let Ok(lease) = &outcome {
                    slot.lease = Some(lease.clone());
                }
            }
            outcome
        }
        .boxed()
        .shared()
    }
}

/// Before a new key comes in: drops what is over, then what ends first.
fn make_room<K: Clone + Eq + Hash, V: Clone>(slots: &mut HashMap<K, Slot<V>>, key: &K, now: Instant) {
    if slots.len() < MAX_LEASES || slots.contains_key(key) {
        return;
    }
    slots
        .retain(|_, slot| slot.flight.is_some() || slot.lease.as_ref().is_some_and(|lease| lease.holds(now)));
    while slots.len() >= MAX_LEASES {
        let ends = |slot: &Slot<V>| {
            slot.lease
                .as_ref()
                .and_then(|lease| lease.terms)
                .map(|(_, ends_at)| ends_at)
        };
        let Some(first) = slots
            .iter()
            .min_by_key(|(_, slot)| ends(slot))
            .map(|(key, _)| key.clone())
        else {
            return;
        };
        slots.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Source {
        calls: Arc<AtomicU32>,
        leases: Leases<u32, u32>,
    }

    impl Source {
        fn new() -> Self {
            Self {
                calls: Arc::default(),
                leases: Leases::new(),
            }
        }

        async fn get(&self, key: u32, life: Duration, fails: bool) -> Outcome<u32> {
            let calls = Arc::clone(&self.calls);
            self.leases
                .get(&key, || {
                    async move {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
                        if fails {
                            Err(Error::invalid("no"))
                        } else {
                            Ok(Lease::new(call, Some(life)))
                        }
                    }
                    .boxed()
                })
                .await
        }
    }

    const LIFE: Duration = Duration::from_secs(100);

    #[tokio::test(start_paused = true)]
    async fn one_request_serves_all_who_wait_even_when_the_first_leaves() {
        let source = Source::new();
        {
            let leaver = source.get(1, LIFE, false);
            let others = futures::future::join_all((0..64).map(|_| source.get(1, LIFE, false)));
            let leaver = tokio::time::timeout(Duration::from_millis(500), leaver);
            let (left, others) = futures::join!(leaver, others);
            assert!(left.is_err());
            assert!(others.iter().all(|got| got.as_ref().unwrap().value == 1));
        }
        assert_eq!(source.calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_is_renewed_before_it_ends_and_outlives_a_failed_renewal() {
        let source = Source::new();
        assert_eq!(source.get(1, LIFE, false).await.unwrap().value, 1);
        tokio::time::advance(Duration::from_secs(79)).await;
        assert_eq!(source.get(1, LIFE, false).await.unwrap().value, 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(
            source.get(1, LIFE, true).await.unwrap().value,
            1,
            "the old one still holds"
        );
        assert_eq!(source.get(1, LIFE, false).await.unwrap().value, 3);
        tokio::time::advance(Duration::from_secs(101)).await;
        assert!(source.get(1, LIFE, true).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_forgotten_value_is_obtained_anew_and_a_newer_one_is_not_forgotten() {
        let source = Source::new();
        let first = source.get(1, LIFE, false).await.unwrap();
        source.leases.forget(&1, first.obtained_at);
        let second = source.get(1, LIFE, false).await.unwrap();
        source.leases.forget(&1, first.obtained_at);
        assert_eq!(
            (second.value, source.get(1, LIFE, false).await.unwrap().value),
            (2, 2)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_values_is_bounded() {
        let source = Source::new();
        let all = (0..3000).map(|key| source.get(key, LIFE, false));
        futures::future::join_all(all).await;
        assert!(source.leases.slots.lock().len() <= MAX_LEASES);
    }
}
