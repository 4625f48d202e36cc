//! Single flight: at most one piece of work per key, which others join instead of repeating it.
//!
//! [`Flights`] hands out slots: the one who gets the slot leads, everyone else gets the leader's shared value. A slot
//! can also be *held* without work to join (a deletion), and then others wait until it is free. [`Coalesce`] is the
//! simple case on top: one future whose result is cloned to all who asked while it ran.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

enum Occupant<V> {
    Flying(V),
    Held(watch::Receiver<()>),
}

type Slots<K, V> = Arc<Mutex<HashMap<K, Occupant<V>>>>;

/// One slot per key; `V` is what joiners receive and is cheap to clone.
pub struct Flights<K, V> {
    slots: Slots<K, V>,
}

/// What [`Flights::join`] found.
pub enum Joined<K: Eq + Hash + Clone, V> {
    /// The slot was free: do the work, then drop the slot.
    Lead(Slot<K, V>),
    /// Someone is doing the work.
    Follow(V),
    /// The slot is held for something that cannot be joined: wait, then join again.
    Held(Released),
}

/// The right to work on a key; dropping it frees the key, also when the work panics.
pub struct Slot<K: Eq + Hash + Clone, V> {
    key: K,
    slots: Slots<K, V>,
    _released: Option<watch::Sender<()>>,
}

/// Completes when a held slot is free again.
pub struct Released(watch::Receiver<()>);

impl<K: Eq + Hash + Clone, V: Clone> Flights<K, V> {
    /// Makes an empty table.
    pub fn new() -> Self {
        Self {
            slots: Arc::default(),
        }
    }

    /// Joins the work on `key`, or starts it with the value that `lead` makes for the others.
    pub fn join(&self, key: &K, lead: impl FnOnce() -> V) -> Joined<K, V> {
        match self.slots.lock().entry(key.clone()) {
            Entry::Occupied(entry) => match entry.get() {
                Occupant::Flying(value) => Joined::Follow(value.clone()),
                Occupant::Held(receiver) => Joined::Held(Released(receiver.clone())),
            },
            Entry::Vacant(entry) => {
                entry.insert(Occupant::Flying(lead()));
                Joined::Lead(self.slot(key, None))
            }
        }
    }

    /// The value of the work on `key`, if it is under way.
    pub fn peek(&self, key: &K) -> Option<V> {
        match self.slots.lock().get(key) {
            Some(Occupant::Flying(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Takes the slot of `key` without work to join; `None` while it is taken.
    pub fn hold(&self, key: &K) -> Option<Slot<K, V>> {
        match self.slots.lock().entry(key.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                let (sender, receiver) = watch::channel(());
                entry.insert(Occupant::Held(receiver));
                Some(self.slot(key, Some(sender)))
            }
        }
    }

    /// To wait until a slot that is held is free; `None` when it is free, or taken by work that can be joined.
    pub fn released(&self, key: &K) -> Option<Released> {
        match self.slots.lock().get(key) {
            Some(Occupant::Held(receiver)) => Some(Released(receiver.clone())),
            _ => None,
        }
    }

    /// The number of keys taken.
    pub fn len(&self) -> usize {
        self.slots.lock().len()
    }

    /// Whether no key is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slot(&self, key: &K, released: Option<watch::Sender<()>>) -> Slot<K, V> {
        Slot {
            key: key.clone(),
            slots: Arc::clone(&self.slots),
            _released: released,
        }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Default for Flights<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Clone for Flights<K, V> {
    fn clone(&self) -> Self {
        Self {
            slots: Arc::clone(&self.slots),
        }
    }
}

impl<K, V> fmt::Debug for Flights<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flights({})", self.slots.lock().len())
    }
}

impl<K: Eq + Hash + Clone, V> Drop for Slot<K, V> {
    fn drop(&mut self) {
        self.slots.lock().remove(&self.key);
    }
}

impl Released {
    /// Waits until the slot is free. Cancel safe.
    pub async fn wait(mut self) {
        // The sender sends nothing; it is dropped with the slot.
        while self.0.changed().await.is_ok() {}
    }
}

/// One running future per key; all who ask while it runs get a clone of its result.
///
/// The future runs as a task on the tracker, so it goes on when whoever asked first leaves.
pub struct Coalesce<K, V: Clone> {
    running: Flights<K, Shared<BoxFuture<'static, Option<V>>>>,
    tracker: TaskTracker,
}

impl<K, V> Coalesce<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Makes an empty table whose tasks are counted by `tracker`.
    pub fn new(tracker: TaskTracker) -> Self {
        Self {
            running: Flights::new(),
            tracker,
        }
    }

    /// The result of the work on `key`, started by `work` if none is under way; `None` when the work panicked.
    ///
    /// # Cancel safety
    /// The work goes on when this future is dropped.
    pub fn run<F>(&self, key: &K, work: impl FnOnce() -> F) -> (bool, Shared<BoxFuture<'static, Option<V>>>)
    where
        F: Future<Output = V> + Send + 'static,
    {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let shared = receiver.map(Result::ok).boxed().shared();
        match self.running.join(key, || shared.clone()) {
            Joined::Follow(other) => (true, other),
            Joined::Lead(slot) => {
                let work = work();
                self.tracker.spawn(async move {
                    let value = work.await;
                    // The key is free before anyone sees the result: who asks after an answer starts anew.
                    drop(slot);
                    drop(sender.send(value));
                });
                (false, shared)
            }
            Joined::Held(_) => (false, futures::future::ready(None).boxed().shared()),
        }
    }
}

impl<K, V: Clone> fmt::Debug for Coalesce<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.running.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn the_second_follows_and_a_dropped_slot_frees_the_key() {
        let flights: Flights<&str, u8> = Flights::new();
        let Joined::Lead(slot) = flights.join(&"k", || 7) else {
            panic!("free key leads")
        };
        assert!(matches!(flights.join(&"k", || 8), Joined::Follow(7)));
        assert!(flights.hold(&"k").is_none());
        drop(slot);
        assert!(matches!(flights.join(&"k", || 9), Joined::Lead(_)));
    }

    #[tokio::test]
    async fn a_held_slot_makes_others_wait_until_it_is_dropped() {
        let flights: Flights<&str, u8> = Flights::new();
        let slot = flights.hold(&"k").expect("free");
        let Joined::Held(released) = flights.join(&"k", || 1) else {
            panic!("held")
        };
        let freed = async {
            tokio::task::yield_now().await;
            drop(slot);
        };
        tokio::join!(released.wait(), freed);
        assert!(flights.is_empty());
    }

    #[tokio::test]
    async fn many_ask_one_works_and_a_leaver_stops_nothing() {
        let calls = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(tokio::sync::Notify::new());
        let coalesce: Coalesce<u8, u8> = Coalesce::new(TaskTracker::new());
        let ask = || {
            let (calls, gate) = (Arc::clone(&calls), Arc::clone(&gate));
            coalesce.run(&1, move || async move {
                calls.fetch_add(1, Ordering::Relaxed);
                gate.notified().await;
                42
            })
        };
        let (joined, first) = ask();
        assert!(!joined);
        drop(first);
        let (joined, second) = ask();
        assert!(joined);
        gate.notify_one();
        assert_eq!(second.await, Some(42));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
