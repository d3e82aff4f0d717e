//! Clears a cache of unneeded grains, on request: whole segments, after their needed grains have been moved
//! out.

use std::collections::BTreeSet;

use shardd_api::evict::Cleared;
use shardfmt::GrainKey;
use tracing::warn;

use super::{Cache, Class, Dropped, format};

/// A segment that is worth clearing.
struct Worth {
    number: u32,
    class: Class,
    going: u64,
    /// Bytes of what stays.
    staying_bytes: u64,
    /// Room that moving it takes.
    needed: u64,
    bytes: u64,
}

impl Cache {
    /// Drops grains for which `stays` gives no class; it gets the class under which each is kept now. A
    /// segment of which more than half stays is left as it is, and so is one for whose rest there is no room:
    /// nothing that stays is lost. A `dry_run` only says what would go.
    pub fn clear(&self, stays: impl Fn(&GrainKey, &Class) -> Option<Class>, dry_run: bool) -> Cleared {
        let mut worth: Vec<Worth> = self
            .segments_where(|_| true)
            .into_iter()
            .filter_map(|number| self.worth_clearing(number, &stays))
            .collect();
        // Those of which nothing stays make room for the rest of others.
        worth.sort_by_key(|segment| segment.staying_bytes > 0);
        let mut cleared = Cleared::default();
        for segment in worth {
            if !dry_run && !self.clear_segment(&segment, &stays) {
                continue;
            }
            cleared.segments += 1;
            cleared.grains += segment.going;
            cleared.bytes += segment.bytes - segment.staying_bytes;
        }
        cleared
    }

    fn worth_clearing(
        &self,
        number: u32,
        stays: &impl Fn(&GrainKey, &Class) -> Option<Class>,
    ) -> Option<Worth> {
        let (class, bytes, live) = {
            let state = self.state();
            let segment = state.segments.get(&number)?;
            (segment.class.clone(), segment.bytes, state.live_in(number))
        };
        let (mut going, mut staying_bytes, mut classes) = (0, 0, BTreeSet::new());
        for (key, place) in live {
            match stays(&key, &class) {
                Some(class) => {
                    staying_bytes += format::record_bytes(place.len().into());
                    classes.insert(class);
                }
                None => going += 1,
            }
        }
        let is_worth = (going > 0 || staying_bytes == 0) && staying_bytes <= bytes / 2;
        // In each class what stays may open a segment, and another one when that is full.
        let headers = format::MOST_OVERHEAD.saturating_mul(2 * classes.len() as u64);
        let needed = staying_bytes.saturating_add(headers);
        is_worth.then_some(Worth { number, class, going, staying_bytes, needed, bytes })
    }

    /// Whether the segment went.
    fn clear_segment(&self, segment: &Worth, stays: &impl Fn(&GrainKey, &Class) -> Option<Class>) -> bool {
        if self.free() < segment.needed {
            return false;
        }
        let mut dropped = Dropped::default();
        let emptied =
            self.empty_segment(segment.number, &|key| stays(key, &segment.class), false, &mut dropped);
        if let Err(error) = emptied {
            warn!(error = &error as &dyn std::error::Error, "a segment could not be cleared");
        }
        dropped.segments > 0
    }
}
