//! The rooms of sequences in the order of opening, to find the first that suffices.

/// A tree of maxima over the rooms: the first sequence with enough room is found in a step per doubling of their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rooms {
    /// Leaves of the tree: a power of two, or 0.
    leaves: usize,
    /// The root at 1, and the maximum of nodes `2 i` and `2 i + 1` at `i`.
    tree: Vec<u32>,
    sequences: usize,
}

impl Rooms {
    /// The first sequence with room for `needed`, which is at least 1.
    pub(crate) fn first(&self, needed: u32) -> Option<u32> {
        if self.leaves == 0 || self.tree[1] < needed {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            node += usize::from(self.tree[node] < needed);
        }
        Some((node - self.leaves) as u32)
    }

    /// Opens a sequence with this room.
    pub(crate) fn open(&mut self, room: u32) {
        if self.sequences == self.leaves {
            self.grow();
        }
        self.sequences += 1;
        self.set(self.sequences as u32 - 1, room);
    }

    /// Changes the room of a sequence.
    pub(crate) fn set(&mut self, sequence: u32, room: u32) {
        let mut node = self.leaves + sequence as usize;
        self.tree[node] = room;
        while node > 1 {
            node /= 2;
            let largest = self.tree[2 * node].max(self.tree[2 * node + 1]);
            if self.tree[node] == largest {
                return;
            }
            self.tree[node] = largest;
        }
    }

    /// Closes all sequences, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.tree.fill(0);
        self.sequences = 0;
    }

    fn grow(&mut self) {
        let leaves = (2 * self.leaves).max(64);
        let mut tree = vec![0; 2 * leaves];
        tree[leaves..leaves + self.leaves].copy_from_slice(&self.tree[self.leaves..]);
        for node in (1..leaves).rev() {
            tree[node] = tree[2 * node].max(tree[2 * node + 1]);
        }
        *self = Self { leaves, tree, sequences: self.sequences };
    }
}
