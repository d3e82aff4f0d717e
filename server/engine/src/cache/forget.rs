//! Forgetting shards: no segment that has bytes of one of them stays, found or not, and none comes again.

use std::collections::BTreeSet;

use shardfmt::ShardId;

use super::{Cache, CacheError, Dropped};

impl Cache {
    /// Drops every segment that may have bytes of these shards, also of grains that cannot be found any more, after moving its other
    /// grains; those that find no room are lost. From now on no grain of these shards is kept. Files that are open or mapped stay
    /// readable to those who have them.
    ///
    /// # Errors
    ///
    /// When a segment cannot be unlinked, now or earlier, or moved grains cannot be made durable. Later
    /// segments are left. Call it again.
    pub fn forget(&self, shards: &BTreeSet<ShardId>) -> Result<Dropped, CacheError> {
        self.state().forgotten.extend(shards);
        let mut dropped = Dropped::default();
        for number in self.segments_where(|_| true) {
            let is_written_to = self.state().segments.get(&number).is_some_and(|segment| segment.writing > 0);
            // A grain admitted before is known when it is written.
            let state = if is_written_to { self.seal(number) } else { self.state() };
            let class = match state.segments.get(&number) {
                Some(segment) if state.may_hold(segment, shards) => segment.class.clone(),
                _ => continue,
            };
            drop(state);
            let stays = |key: &shardfmt::GrainKey| (!shards.contains(&key.shard)).then(|| class.clone());
            self.empty_segment(number, &stays, true, &mut dropped)?;
        }
        self.unlink_doomed()?;
        Ok(dropped)
    }
}
