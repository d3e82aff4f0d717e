//! Repairs damaged files of a version from any place that still has their rows.
//!
//! Rows written again make the same bytes, whatever their source: a copy of the shard, other shards with the
//! same samples, the input, or the rest of the damaged file itself. Everything is verified against the
//! manifest before it is stored, and checked in the store afterwards. Rows that are found before the shard is
//! complete wait in a temporary file.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::datatypes::SchemaRef;
use rayon::prelude::*;
use serde::Serialize;
use shardfmt::digest::ShardId;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::row::RowDigest;
use shardfmt::shard::{Compression, FinishedShard, Shard, ShardError, ShardWriter, ZstdLevel};
use shardfmt::store::Store;

use super::damage::File;
use super::store::{one_line, read_shard, read_sidecar};
use super::verify::{Finding, check};
use super::{Layout, VersionError};
use crate::{Progress, Sink};

/// A repair under way.
pub struct Repair<'a> {
    schema: SchemaRef,
    /// How the version's shards may be compressed.
    compressions: Vec<Compression>,
    store: &'a dyn Store,
    sink: &'a dyn Sink,
    state: Mutex<State>,
}

/// A shard that is whole again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mended {
    /// The shard.
    pub shard: ShardId,
    /// The source of the missing parts.
    pub from: String,
}

/// A shard that could not be mended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The shard.
    pub shard: ShardId,
    /// Why, and what would help.
    pub reason: String,
}

struct State {
    /// The shards still to be mended.
    needs: BTreeMap<ShardId, Need>,
    /// Rows of those, and where they were found.
    rows: HashMap<RowDigest, Option<Place>>,
    file: fs::File,
    file_bytes: u64,
    mended: Vec<Mended>,
    /// Shards that were found and could not be stored.
    failed: BTreeMap<ShardId, String>,
}

struct Need {
    entry: ShardEntry,
    /// The digests of its rows, if any sidecar of it is left.
    digests: Option<Vec<RowDigest>>,
}

/// Where a row lies in the temporary file.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    bytes: u32,
}

impl<'a> Repair<'a> {
    /// A repair of the damage found in a version in `store`, written through `sink`, which ends in that
    /// store. Sidecars whose shards are intact are rebuilt at once, and the rest of damaged shards is read.
    ///
    /// # Errors
    ///
    /// When there is no room for temporary files.
    pub fn new(
        manifest: &Manifest,
        findings: &[Finding],
        store: &'a dyn Store,
        sink: &'a dyn Sink,
    ) -> Result<Self, VersionError> {
        let file = tempfile::tempfile().map_err(VersionError::spill)?;
        let (needs, rows, mended, failed) = Default::default();
        let state = Mutex::new(State { needs, rows, file, file_bytes: 0, mended, failed });
        let recorded = Layout::recorded(manifest).map(|layout| layout.compression);
        let usual = [Compression::None, Compression::Lz4, Compression::Zstd(ZstdLevel::default())];
        let usual = usual.into_iter().filter(|usual| Some(*usual) != recorded);
        let compressions = recorded.into_iter().chain(usual).collect();
        let repair = Self { schema: manifest.schema.clone(), compressions, store, sink, state };
        // Whether more than the sidecar is damaged.
        let mut damaged: BTreeMap<ShardId, bool> = BTreeMap::new();
        for finding in findings {
            *damaged.entry(finding.shard).or_default() |= finding.file == File::Shard;
        }
        for entry in &manifest.shards {
            let Some(shard_too) = damaged.remove(&entry.id) else { continue };
            let need = Need { entry: entry.clone(), digests: None };
            repair.state().needs.insert(entry.id, need);
            match shard_too {
                false => repair.copy_from(store, entry, "its own rows"),
                true => {
                    repair.learn(read_sidecar(store, entry).ok().map(|sidecar| sidecar.rows), entry.id);
                    repair.salvage(entry)?;
                }
            }
        }
        repair.assemble("the rest of the shard")?;
        Ok(repair)
    }

    /// Whether nothing is left to mend.
    pub fn is_done(&self) -> bool {
        self.state().needs.is_empty()
    }

    /// Looks for copies of damaged shards in another store.
    ///
    /// # Errors
    ///
    /// When there is no room for temporary files.
    pub fn search_store(&self, other: &dyn Store, name: &str) -> Result<(), VersionError> {
        let needed: Vec<ShardEntry> = self.state().needs.values().map(|need| need.entry.clone()).collect();
        for entry in &needed {
            self.copy_from(other, entry, name);
            if self.state().needs.get(&entry.id).is_some_and(|need| need.digests.is_none()) {
                self.learn(read_sidecar(other, entry).ok().map(|sidecar| sidecar.rows), entry.id);
            }
        }
        self.assemble(name)
    }

    /// Looks for rows of damaged shards in the shards of a version: another one of the dataset, perhaps.
    ///
    /// # Errors
    ///
    /// When there is no room for temporary files.
    pub fn search_version(
        &self,
        other: &Manifest,
        store: &dyn Store,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<(), VersionError> {
        if self.state().rows.values().all(Option::is_some) || self.schema.fields() != other.schema.fields() {
            return Ok(());
        }
        other.shards.par_iter().try_for_each(|entry| {
            progress.advanced(u64::from(entry.rows), entry.row_bytes, "searching");
            let Ok(sidecar) = read_sidecar(store, entry) else { return Ok(()) };
            if self.state().needs.contains_key(&entry.id) || !self.state().wants(&sidecar.rows) {
                return Ok(());
            }
            match read_shard(store, entry) {
                Ok(shard) => self.take_rows(&shard),
                Err(_) => Ok(()),
            }
        })?;
        self.assemble(name)
    }

    /// Has `read` ingest a source of the version into a sink that keeps the needed rows: whole shards when it
    /// is done with the settings that the version was made with, rows with any.
    ///
    /// # Errors
    ///
    /// When there is no room for temporary files; inside, what `read` says.
    pub fn search_source<T, E>(
        &self,
        name: &str,
        read: impl FnOnce(&dyn Sink) -> Result<T, E>,
    ) -> Result<Result<T, E>, VersionError> {
        let outcome = read(&Source { repair: self, name });
        self.assemble(name)?;
        Ok(outcome)
    }

    /// The mended shards, and the lost ones.
    pub fn finish(self) -> (Vec<Mended>, Vec<Lost>) {
        let State { needs, rows, mended, mut failed, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let lost = needs.into_values().map(|need| {
            let shard = need.entry.id;
            let reason = failed.remove(&shard).unwrap_or_else(|| match &need.digests {
                None => "its sidecar is lost too, so only a copy of it or its source can restore its \
                         samples; give another store, a node or the source with --from"
                    .to_owned(),
                Some(digests) => {
                    let is_found = |digest: &&RowDigest| rows.get(*digest).is_some_and(Option::is_some);
                    let found = digests.iter().filter(is_found).count();
                    format!(
                        "{found} of its {} rows were found; give another store, a node or the source with --from",
                        digests.len()
                    )
                }
            });
            Lost { shard, reason }
        });
        (mended, lost.collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the shard as it is from a store that has it.
    fn copy_from(&self, store: &dyn Store, entry: &ShardEntry, name: &str) {
        let Ok(shard) = read_shard(store, entry) else { return };
        if let Ok(shard) = FinishedShard::read(&shard, entry.clone()) {
            self.put(shard, name);
        }
    }

    /// Stores a shard, and sees whether all is well then.
    fn put(&self, shard: FinishedShard, name: &str) {
        let (id, entry) = (shard.id, shard.entry.clone());
        let stored = self.sink.put_shard(shard).map_err(|error| format!("it cannot be stored: {error}"));
        let checked = stored.and_then(|()| match check(&entry, self.store).first() {
            None => Ok(()),
            Some(finding) => Err(format!("it was stored, and yet its {} {}", finding.file, finding.damage)),
        });
        let mut state = self.state();
        match checked {
            Ok(()) => {
                state.needs.remove(&id);
                state.mended.push(Mended { shard: id, from: name.to_owned() });
            }
            Err(reason) => _ = state.failed.insert(id, reason),
        }
    }

    /// Notes which rows a shard has.
    fn learn(&self, digests: Option<Vec<RowDigest>>, shard: ShardId) {
        let (mut state, Some(digests)) = (self.state(), digests) else { return };
        for digest in &digests {
            state.rows.entry(*digest).or_default();
        }
        if let Some(need) = state.needs.get_mut(&shard) {
            need.digests = Some(digests);
        }
    }

    /// Reads the rows of a damaged shard that are as they were.
    fn salvage(&self, entry: &ShardEntry) -> Result<(), VersionError> {
        let Ok(Some(bytes)) = self.store.shard(entry.id) else { return Ok(()) };
        match Shard::from_bytes(bytes).ok().filter(|shard| shard.schema().fields() == self.schema.fields()) {
            Some(shard) => self.take_rows(&shard),
            None => Ok(()),
        }
    }

    /// Keeps the rows of a shard that are wanted, whatever else it has.
    fn take_rows(&self, shard: &Shard) -> Result<(), VersionError> {
        let mut row = Vec::new();
        for number in 0..shard.rows() {
            row.clear();
            if shard.encode_row(number, &mut row).is_ok() {
                self.state().keep(RowDigest::of(&row), &row).map_err(VersionError::spill)?;
            }
        }
        Ok(())
    }

    /// Writes the shards of which all rows are together.
    fn assemble(&self, name: &str) -> Result<(), VersionError> {
        let complete: Vec<(ShardEntry, Vec<RowDigest>)> = {
            let state = self.state();
            let has_all =
                |digests: &&Vec<RowDigest>| digests.iter().all(|digest| state.rows[digest].is_some());
            let complete = state.needs.values().filter(|need| !state.failed.contains_key(&need.entry.id));
            let complete = complete.filter_map(|need| {
                Some((need.entry.clone(), need.digests.as_ref().filter(has_all)?.clone()))
            });
            complete.collect()
        };
        for (entry, digests) in complete {
            match self.write(&entry, &digests)? {
                Ok(shard) => self.put(shard, name),
                Err(reason) => _ = self.state().failed.insert(entry.id, reason),
            }
        }
        Ok(())
    }

    /// The shard, written of its rows; or why they make another.
    fn write(
        &self,
        entry: &ShardEntry,
        digests: &[RowDigest],
    ) -> Result<Result<FinishedShard, String>, VersionError> {
        let mut found = None;
        for compression in &self.compressions {
            match self.write_compressed(digests, *compression)? {
                Ok(shard) if shard.id == entry.id => return Ok(Ok(shard)),
                Ok(shard) => _ = found.get_or_insert(shard.id),
                Err(error) => return Ok(Err(one_line(&error))),
            }
        }
        let found = found.map_or_else(String::new, |id| id.to_string());
        Ok(Err(format!("its rows, written again, make shard {found}: another program wrote it")))
    }

    fn write_compressed(
        &self,
        digests: &[RowDigest],
        compression: Compression,
    ) -> Result<Result<FinishedShard, ShardError>, VersionError> {
        let mut writer = match ShardWriter::with_compression(self.schema.clone(), compression) {
            Ok(writer) => writer,
            Err(error) => return Ok(Err(error)),
        };
        let mut row = Vec::new();
        for digest in digests {
            self.state().read(digest, &mut row).map_err(VersionError::spill)?;
            if let Err(error) = writer.push_row(&row) {
                return Ok(Err(error));
            }
        }
        Ok(writer.finish())
    }
}

impl State {
    fn wants(&self, digests: &[RowDigest]) -> bool {
        digests.iter().any(|digest| self.rows.get(digest).is_some_and(Option::is_none))
    }

    fn keep(&mut self, digest: RowDigest, row: &[u8]) -> io::Result<()> {
        if let Some(place @ None) = self.rows.get_mut(&digest) {
            self.file.write_all_at(row, self.file_bytes)?;
            // A row has at most 1 GiB.
            *place = Some(Place { offset: self.file_bytes, bytes: row.len() as u32 });
            self.file_bytes += row.len() as u64;
        }
        Ok(())
    }

    /// A row that was kept.
    fn read(&self, digest: &RowDigest, row: &mut Vec<u8>) -> io::Result<()> {
        let place = self.rows.get(digest).copied().flatten().ok_or(io::ErrorKind::NotFound)?;
        row.resize(place.bytes as usize, 0);
        self.file.read_exact_at(row, place.offset)
    }
}

/// Where the shards of a source go.
struct Source<'a> {
    repair: &'a Repair<'a>,
    name: &'a str,
}

impl Sink for Source<'_> {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        let (is_needed, has_rows) = {
            let state = self.repair.state();
            (state.needs.contains_key(&shard.id), state.wants(&shard.sidecar.rows))
        };
        if is_needed {
            self.repair.put(shard, self.name);
        } else if has_rows && let Ok(shard) = Shard::from_bytes(shard.bytes) {
            self.repair.take_rows(&shard).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Even a shard stored once is looked for now.
    fn has_shard(&self, _: &ShardId) -> io::Result<bool> {
        Ok(false)
    }
}
