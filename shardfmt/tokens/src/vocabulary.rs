//! The tokens of a model: bytes by id, and ids by bytes.

use crate::cache::hash_bytes;

/// No token.
const ABSENT: u32 = u32::MAX;

/// Tokens in one arena, and a hash table of their ids.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    /// Start and length of each token; the length `ABSENT` where an id has none.
    spans: Vec<(u32, u32)>,
    /// Ids by the hash of their bytes, with steps of one; `ABSENT` where a place is free.
    places: Vec<u32>,
    /// The length of the longest token.
    longest: usize,
}

impl Vocabulary {
    /// A vocabulary of `tokens`: id, bytes, and whether text can become the token.
    ///
    /// Of two tokens with one id the later one stays, and of two with the same bytes the later one is found. The caller
    /// has checked that ids are small and that all tokens together take less than 4 GiB.
    pub(crate) fn new(tokens: &[(u32, Vec<u8>, bool)]) -> Self {
        let mut vocabulary =
            Self { places: vec![ABSENT; (tokens.len() * 2).next_power_of_two().max(2)], ..Self::default() };
        for (id, bytes, reachable) in tokens {
            vocabulary.add(*id, bytes);
            if *reachable {
                vocabulary.index(*id, bytes);
            }
        }
        vocabulary
    }

    fn add(&mut self, id: u32, token: &[u8]) {
        let at = id as usize;
        if at >= self.spans.len() {
            self.spans.resize(at + 1, (0, ABSENT));
        }
        self.longest = self.longest.max(token.len());
        self.spans[at] = (self.bytes.len() as u32, token.len() as u32);
        self.bytes.extend_from_slice(token);
    }

    fn index(&mut self, id: u32, token: &[u8]) {
        let mut at = self.first_place(token);
        while self.places[at] != ABSENT && self.token(self.places[at]) != Some(token) {
            at = (at + 1) & (self.places.len() - 1);
        }
        self.places[at] = id;
    }

    /// The id of the token with these bytes.
    #[inline]
    pub(crate) fn id(&self, token: &[u8]) -> Option<u32> {
        if token.len() > self.longest {
            return None;
        }
        let mut at = self.first_place(token);
        loop {
            let id = *self.places.get(at)?;
            if id == ABSENT {
                return None;
            }
            if self.token(id) == Some(token) {
                return Some(id);
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    /// The bytes of the token `id`.
    #[inline(always)]
    pub(crate) fn token(&self, id: u32) -> Option<&[u8]> {
        let &(start, length) = self.spans.get(id as usize)?;
        if length == ABSENT {
            return None;
        }
        self.bytes.get(start as usize..)?.get(..length as usize)
    }

    /// One more than the largest id.
    pub(crate) fn size(&self) -> usize {
        self.spans.len()
    }

    fn first_place(&self, token: &[u8]) -> usize {
        hash_bytes(token) as usize & self.places.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests;
