//! Reads files that lie far away, as [`Content`]: who reads on and on finds the next part there, who jumps fetches little,
//! and who reads one small file after the other finds the next ones there. All that is fetched before it is asked for
//! has one budget. Knows nothing of stores.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use shardd_ingest::{Content, InputFile, ReadAt};

use super::network::{Early, Network};
use super::object::Object;

/// The most that is fetched by one request; a file of this size is small.
const BLOCK: u64 = 4 << 20;
/// The least that is worth a request.
const PAGE: u64 = 64 << 10;
/// Blocks that are fetched while one is read.
const BLOCKS_AHEAD: usize = 2;
/// How many files ahead of the one that is read are looked at.
const FILES_AHEAD: usize = 64;
/// Files that are read one after the other are not further apart than this: others may lie between them.
const NEAR: usize = 16;
/// After this number of other files, no reader will want the file fetched ahead.
const MAX_AGE: u64 = 512;

/// Files of one listing, in the order of their names.
#[derive(Debug)]
pub(super) struct Listing {
    network: Network,
    objects: Vec<Arc<Object>>,
    window: Mutex<Window>,
}

/// The small files that are fetched before they are asked for.
#[derive(Debug)]
struct Window {
    early: BTreeMap<usize, (u64, Early<io::Result<Bytes>>)>,
    /// How often each file was read as a whole.
    reads: Vec<u32>,
    clock: u64,
}

impl Listing {
    pub(super) fn new(network: &Network, objects: Vec<Object>) -> Arc<Listing> {
        let reads = vec![0; objects.len()];
        Arc::new(Listing {
            network: network.clone(),
            objects: objects.into_iter().map(Arc::new).collect(),
            window: Mutex::new(Window { early: BTreeMap::new(), reads, clock: 0 }),
        })
    }

    /// All files; `describe` gives each one's place, for messages, and its name.
    pub(super) fn files(self: &Arc<Self>, describe: impl Fn(&Object) -> (String, String)) -> Vec<InputFile> {
        let file = |(index, object): (usize, &Arc<Object>)| {
            let (path, name) = describe(object);
            InputFile::new(path, name, object.bytes(), object.stamp(), self.content(index))
        };
        self.objects.iter().enumerate().map(file).collect()
    }

    /// The file at this place of the listing.
    pub(super) fn content(self: &Arc<Self>, index: usize) -> Arc<dyn Content> {
        Arc::new(FarFile { listing: self.clone(), index })
    }

    /// All of a small file.
    fn whole(&self, index: usize) -> io::Result<Bytes> {
        let early =
            self.window.lock().expect("no panic while held").take(index, &self.objects, &self.network);
        let object = &self.objects[index];
        match early {
            Some(early) => self.network.finish(early),
            None => self.network.wait(object.fetch(0..object.bytes())),
        }
    }
}

impl Window {
    /// The part of this file that is here, or pending. If files near before it were read as often, the next
    /// ones are fetched.
    fn take(
        &mut self,
        index: usize,
        objects: &[Arc<Object>],
        network: &Network,
    ) -> Option<Early<io::Result<Bytes>>> {
        self.clock += 1;
        self.reads[index] += 1;
        let reads = self.reads[index];
        let mine = self.early.remove(&index).map(|(_, early)| early);
        self.early.retain(|_, (born, _)| self.clock - *born < MAX_AGE);
        let before = &self.reads[index.saturating_sub(NEAR)..index];
        if mine.is_none() && !before.iter().any(|&before| before >= reads) {
            return None;
        }
        let ending = ending(&objects[index]);
        let next = index + 1..objects.len().min(index + 1 + FILES_AHEAD);
        for (next, object) in next.clone().zip(&objects[next]) {
            let is_wanted = self.reads[next] < reads && self::ending(object) == ending;
            if !is_wanted || object.bytes() > BLOCK || self.early.contains_key(&next) {
                continue;
            }
            let (bytes, object) = (object.bytes(), object.clone());
            let Some(early) = network.early(bytes, async move { object.fetch(0..bytes).await }) else {
                break;
            };
            self.early.insert(next, (self.clock, early));
        }
        mine
    }
}

/// The part after the last dot: files that are read together have it in common.
fn ending(object: &Object) -> Option<&str> {
    object.path().extension()
}

#[derive(Debug)]
struct FarFile {
    listing: Arc<Listing>,
    index: usize,
}

impl Content for FarFile {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        let place = Mutex::new(Place::default());
        Ok(Arc::new(FarReader { listing: self.listing.clone(), index: self.index, place }))
    }

    fn is_near(&self) -> bool {
        false
    }
}

struct FarReader {
    listing: Arc<Listing>,
    index: usize,
    place: Mutex<Place>,
}

/// Where a reader is.
#[derive(Default)]
struct Place {
    /// The part that is here.
    start: u64,
    bytes: Bytes,
    /// The next file to fetch, if reads are in order.
    step: u64,
    /// The following bytes, part by part.
    ahead: VecDeque<(u64, Early<io::Result<Bytes>>)>,
    /// Where that ends.
    ahead_to: u64,
}

impl ReadAt for FarReader {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let size = self.listing.objects[self.index].bytes();
        if offset >= size || buffer.is_empty() {
            return Ok(0);
        }
        let mut place = self.place.lock().expect("no panic while held");
        if place.here(offset).is_empty() {
            let moved = self.go(&mut place, offset, buffer.len() as u64);
            moved.inspect_err(|_| *place = Place::default())?;
        }
        let here = place.here(offset);
        let length = here.len().min(buffer.len());
        buffer[..length].copy_from_slice(&here[..length]);
        Ok(length)
    }
}

impl FarReader {
    /// Makes the part that begins at `offset`, or some bytes before, the one that is here.
    fn go(&self, place: &mut Place, offset: u64, wanted: u64) -> io::Result<()> {
        let Listing { network, objects, .. } = &*self.listing;
        let object = &objects[self.index];
        let size = object.bytes();
        if offset == 0 && size <= BLOCK && wanted >= size.min(PAGE) {
            *place = Place { bytes: self.listing.whole(self.index)?, ..Place::default() };
            return Ok(());
        }
        let follows = offset == place.end();
        if !follows {
            place.ahead.clear();
            place.step = 0;
        }
        let is_fetched = place.ahead.front().is_some_and(|(start, _)| *start == offset);
        let (start, bytes) = match place.ahead.pop_front().filter(|_| is_fetched) {
            Some((start, early)) => (start, network.finish(early)?),
            None => {
                // Footers are read from their end: with a page before it, mostly all of it is there at once.
                let start = if follows { offset } else { offset.min(size.saturating_sub(PAGE)) };
                let length = (offset - start) + wanted.clamp(PAGE, BLOCK).max(place.step);
                let end = size.min(start.saturating_add(length));
                (start, network.wait(object.fetch(start..end))?)
            }
        };
        (place.start, place.bytes) = (start, bytes);
        place.step = if follows { (wanted.max(place.step) * 4).min(BLOCK) } else { PAGE };
        if place.step == BLOCK {
            place.fetch_ahead(object, network);
        }
        Ok(())
    }
}

impl Place {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// The bytes here from `offset` on.
    fn here(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.start).and_then(|skipped| usize::try_from(skipped).ok());
        skipped.and_then(|skipped| self.bytes.get(skipped..)).unwrap_or_default()
    }

    fn fetch_ahead(&mut self, object: &Arc<Object>, network: &Network) {
        if self.ahead.is_empty() {
            self.ahead_to = self.end();
        }
        while self.ahead.len() < BLOCKS_AHEAD && self.ahead_to < object.bytes() {
            let range = self.ahead_to..object.bytes().min(self.ahead_to + BLOCK);
            let (start, end, object) = (range.start, range.end, object.clone());
            let Some(early) = network.early(end - start, async move { object.fetch(range).await }) else {
                return;
            };
            self.ahead.push_back((start, early));
            self.ahead_to = end;
        }
    }
}
