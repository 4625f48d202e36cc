//! Uses, gathered in memory and written in batches: a hit costs one entry in a map, and a hot image one write a second.

use std::collections::HashMap;

use parking_lot::Mutex;

/// More distinct uses than this between two writes are not remembered: memory stays bounded.
const MAX_TOUCHES: usize = 65_536;

/// Uses by link key, each with its time in milliseconds since the Unix epoch.
#[derive(Debug, Default)]
pub(super) struct Touches(Mutex<HashMap<Vec<u8>, u64>>);

impl Touches {
    /// Remembers a use.
    pub(super) fn add(&self, link: Vec<u8>, at_ms: u64) {
        let mut touches = self.0.lock();
        if let Some(known) = touches.get_mut(&link) {
            *known = at_ms.max(*known);
        } else if touches.len() < MAX_TOUCHES {
            touches.insert(link, at_ms);
        }
    }

    /// Takes what was gathered.
    pub(super) fn take(&self) -> HashMap<Vec<u8>, u64> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The latest use of a link that is not written yet.
    pub(super) fn latest(&self, link: &[u8]) -> Option<u64> {
        self.0.lock().get(link).copied()
    }
}
