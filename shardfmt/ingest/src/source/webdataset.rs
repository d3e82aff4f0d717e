//! WebDataset: archives in which members that follow each other and share a key are one sample, a column each. The columns
//! are those that the names tell of; or those of an archive's own schema, which `shardctl export` writes, and then to the
//! bit.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use shardfmt::InputDigest;
use shardfmt::member::{Members, SCHEMA_MEMBER};
use shardfmt::row::{MAX_ROW_BYTES, RowCodec};

use super::arrays::{self, Arrays};
use super::cells::{Cell, Column, Misfit, Table, Values};
use super::images::Load;
use super::keyed::{self, Survey};
use super::tars::{LARGEST_MEMBER, Member, Tar, Tars, Twice};
use super::{About, Faults, Feed, Format, Stopped};
use crate::config::OnError;
use crate::error::one_line;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

/// The most bytes that the members of a sample may have, as it will be a row.
const LARGEST_SAMPLE: u64 = if cfg!(test) { 4 << 20 } else { MAX_ROW_BYTES as u64 };

#[derive(Debug)]
pub(super) struct WebDatasetSource {
    about: About,
    tars: Tars,
    reading: Reading,
    /// Of the first archive; the others have the same.
    own_schema: Option<OwnSchema>,
}

/// How the members of a sample become a row.
#[derive(Debug)]
enum Reading {
    /// By what their names say.
    Columns { columns: Vec<Column>, of_suffix: HashMap<String, Option<usize>> },
    /// By the schema that their archive has.
    Own { members: Members, codec: RowCodec },
}

/// The schema that an archive declares, if any.
#[derive(Debug)]
pub(super) struct OwnSchema {
    message: Option<Vec<u8>>,
    /// Which archive says it.
    archive: Box<Path>,
}

/// The members of a sample, in archive order.
struct Sample {
    key: String,
    /// Name and bytes of each.
    members: Vec<(String, Vec<u8>)>,
    bytes: u64,
    /// The fault of one of them.
    fault: Option<(String, IngestError)>,
}

impl OwnSchema {
    /// The schema of the archive with this first member.
    pub(super) fn of(first: &mut Member<'_>, tar: &Tar) -> Result<OwnSchema, IngestError> {
        let message = match first.name.as_str() {
            SCHEMA_MEMBER => Some(first.read(keyed::LONGEST_SCHEMA)?),
            _ => None,
        };
        Ok(OwnSchema { message, archive: tar.file.path.as_path().into() })
    }

    /// Refuses an archive that says something else than the first.
    pub(super) fn check(self, first: &mut Option<OwnSchema>) -> Result<(), IngestError> {
        match first {
            None => *first = Some(self),
            Some(first) => self.check_with(first)?,
        }
        Ok(())
    }

    fn check_with(&self, first: &OwnSchema) -> Result<(), IngestError> {
        if self.message == first.message {
            return Ok(());
        }
        Err(IngestError::Schemas {
            path: self.archive.clone().into(),
            first: first.archive.clone().into(),
            difference: format!("has another schema in {SCHEMA_MEMBER}, or none"),
        })
    }

    /// Whether it says anything.
    pub(super) fn is_there(&self) -> bool {
        self.message.is_some()
    }

    fn reading(&self) -> Result<(Reading, SchemaRef), IngestError> {
        let path = &self.archive;
        let refuse = |reason: String| IngestError::Member {
            path: path.clone().into(),
            entry: SCHEMA_MEMBER.to_owned(),
            reason,
        };
        let schema = keyed::schema_of(self.message.as_deref().unwrap_or_default()).map_err(refuse)?;
        let schema = canonical::canonical_schema(path, &schema)?;
        let members = Members::new(schema.clone()).map_err(|error| refuse(one_line(error)))?;
        let codec = RowCodec::new(schema.clone()).map_err(|error| canonical::row_error(path, error))?;
        Ok((Reading::Own { members, codec }, schema))
    }
}

impl WebDatasetSource {
    pub(super) fn open(
        tars: Tars,
        survey: &Survey,
        own_schema: Option<OwnSchema>,
        passed: u64,
        config: &IngestConfig,
    ) -> Result<WebDatasetSource, IngestError> {
        if survey.keys == 0 {
            let found = "no member with a key and an ending".to_owned();
            return Err(IngestError::NoSamples { path: tars.path, found });
        }
        let (reading, schema) = match &own_schema {
            Some(own) => own.reading()?,
            None => {
                let columns = survey.columns(&tars.path, config)?;
                let schema = columns.schema();
                if config.on_error == OnError::Fail && !config.allow_missing {
                    check_complete(&tars, &columns, survey.keys)?;
                }
                (Reading::Columns { columns: columns.columns, of_suffix: columns.of_suffix }, schema)
            }
        };
        let about = About { schema, rows: Some(survey.keys), passed_over: passed + tars.others };
        Ok(WebDatasetSource { about, tars, reading, own_schema })
    }
}

impl Format for WebDatasetSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn turned_out(&self) -> Option<Kind> {
        Some(Kind::WebDataset)
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        self.tars.pieces(feed, |tar, reading, feed| {
            let mut gather = Gather::new(self, tar);
            let visited = reading.each(|member| gather.take(member, feed));
            match &visited {
                Ok(()) => gather.end(feed)?,
                // The sample begun is not known to be whole.
                Err(Stopped::Reading(_)) => {}
                Err(Stopped::Elsewhere(_)) => return visited,
            }
            gather.flush(feed)?;
            visited
        })
    }
}

/// Gathers the samples of an archive into pieces.
struct Gather<'s> {
    source: &'s WebDatasetSource,
    tar: &'s Tar,
    is_first: bool,
    begun: Option<Sample>,
    samples: Vec<Sample>,
    load: Load,
    /// Keys of which there are two, as they come.
    seen: HashSet<String>,
}

impl<'s> Gather<'s> {
    fn new(source: &'s WebDatasetSource, tar: &'s Tar) -> Gather<'s> {
        let (samples, load, seen) = (Vec::new(), Load::default(), HashSet::new());
        Gather { source, tar, is_first: true, begun: None, samples, load, seen }
    }

    fn take(&mut self, member: &mut Member<'_>, feed: &mut Feed<'_, 's>) -> Result<(), Stopped> {
        if std::mem::take(&mut self.is_first)
            && let Some(first) = &self.source.own_schema
        {
            OwnSchema::of(member, self.tar)?.check_with(first)?;
        }
        let Some((key, _)) = keyed::within(&member.name, self.source.tars.under.as_deref()) else {
            return Ok(());
        };
        if self.begun.as_ref().is_none_or(|sample| sample.key != key) {
            self.end(feed)?;
            let is_again = self.tar.twice.may_hold(key) && !self.seen.insert(key.to_owned());
            let fault = is_again.then(|| (key.to_owned(), again(member, key)));
            self.begun = Some(Sample { key: key.to_owned(), members: Vec::new(), bytes: 0, fault });
        }
        let sample = self.begun.as_mut().expect("begun above");
        let is_too_large = sample.bytes.saturating_add(member.size) > LARGEST_SAMPLE;
        let too_large = || member.misfit(&format!("makes a sample of more than {LARGEST_SAMPLE} bytes"));
        let refusal = member.refusal(LARGEST_MEMBER).or_else(|| is_too_large.then(too_large));
        if let Some(error) = refusal {
            sample.fault.get_or_insert((member.name.clone(), error));
        }
        if sample.fault.is_none() {
            let bytes = sample.bytes.saturating_add(member.size);
            feed.check_row(&self.tar.name_of(&member.name), bytes).map_err(Stopped::Elsewhere)?;
        }
        if sample.fault.is_some() {
            (sample.members, sample.bytes) = (Vec::new(), 0);
        } else {
            let bytes = member.read(LARGEST_MEMBER)?;
            sample.bytes += bytes.len() as u64;
            sample.members.push((member.name.clone(), bytes));
        }
        Ok(())
    }

    /// Ends the sample begun.
    fn end(&mut self, feed: &mut Feed<'_, 's>) -> Result<(), Stopped> {
        let Some(sample) = self.begun.take() else { return Ok(()) };
        let is_full = self.load.add(self.source.weight(&sample));
        self.samples.push(sample);
        if is_full { self.flush(feed) } else { Ok(()) }
    }

    fn flush(&mut self, feed: &mut Feed<'_, 's>) -> Result<(), Stopped> {
        self.load = Load::default();
        let samples = std::mem::take(&mut self.samples);
        let Some(first) = samples.first() else { return Ok(()) };
        let (source, tar) = (self.source, self.tar);
        let listed = feed.piece(tar.name_of(&first.key), move |faults| source.rows(tar, samples, faults));
        listed.map_err(Stopped::Elsewhere)
    }
}

impl WebDatasetSource {
    fn weight(&self, sample: &Sample) -> u64 {
        let Reading::Columns { columns, .. } = &self.reading else { return sample.bytes };
        let pictures = columns.iter().filter_map(|column| match column.values {
            Values::Picture(pictures) => Some(pictures.weight(0)),
            _ => None,
        });
        pictures.fold(sample.bytes, u64::saturating_add)
    }

    fn rows(&self, tar: &Tar, samples: Vec<Sample>, faults: &mut Faults) -> Result<RecordBatch, IngestError> {
        let mut good = Vec::with_capacity(samples.len());
        for mut sample in samples {
            match sample.fault.take() {
                Some((member, error)) => faults.add(tar.name_of(&member), error)?,
                None => good.push(sample),
            }
        }
        let path = &tar.file.path;
        match &self.reading {
            Reading::Columns { columns, of_suffix } => {
                let mut table = Table::new(columns);
                for sample in &good {
                    match row(path, sample, columns, of_suffix) {
                        Ok(row) => table.push(row),
                        Err(error) => faults.add(tar.name_of(&sample.key), error)?,
                    }
                }
                table.finish(path, &self.about.schema)
            }
            Reading::Own { members, codec } => {
                let (mut bytes, mut ends) = (Vec::new(), vec![0]);
                for Sample { key, members: parts, .. } in &good {
                    let suffix = |name: &'_ str| keyed::split(name).map_or("", |(_, suffix)| suffix).len();
                    let parts: Vec<(&str, &[u8])> = parts
                        .iter()
                        .map(|(name, bytes)| (&name[name.len() - suffix(name)..], bytes.as_slice()))
                        .collect();
                    match members.read(&parts, &mut bytes) {
                        Ok(()) => ends.push(bytes.len()),
                        Err(error) => {
                            let entry = format!("{key}.{}", error.member);
                            let path = path.clone();
                            let error = IngestError::Member { path, entry, reason: error.reason };
                            faults.add(tar.name_of(key), error)?;
                        }
                    }
                }
                let rows = ends.windows(2).map(|row| &bytes[row[0]..row[1]]);
                codec.decode(rows).map_err(|error| canonical::row_error(path, error))
            }
        }
    }
}

/// The cells of a sample, which are of the columns that its members' names tell.
fn row<'c>(
    path: &Path,
    sample: &'c Sample,
    columns: &'c [Column],
    of_suffix: &HashMap<String, Option<usize>>,
) -> Result<Vec<Cell<'c>>, IngestError> {
    let misfit = |entry: &str, reason: String| Misfit::Other(reason).named(path, entry);
    let mut cells: Vec<Option<Cell<'c>>> = vec![None; columns.len()];
    cells[0] = Some(columns[0].values.cell(sample.key.as_bytes()).expect("a name in UTF-8"));
    for (name, bytes) in &sample.members {
        let suffix = keyed::split(name).map_or("", |(_, suffix)| suffix);
        let changed = || IngestError::Changed { path: path.to_owned(), what: name.clone() };
        let Some(column) = *of_suffix.get(suffix).ok_or_else(changed)? else { continue };
        let cell = cell(&columns[column].values, bytes).map_err(|misfit| misfit.named(path, name))?;
        if cells[column].replace(cell).is_some() {
            return Err(misfit(name, format!("is the second for column {:?}", columns[column].name)));
        }
    }
    let cells = cells.into_iter().zip(columns).map(|(cell, column)| match cell {
        Some(cell) => Ok(cell),
        None if column.nullable => Ok(Cell::Null),
        None => Err(misfit(&sample.key, format!("has no {:?}", column.name))),
    });
    cells.collect()
}

fn cell<'c>(values: &Values, bytes: &'c [u8]) -> Result<Cell<'c>, Misfit> {
    let Values::Arrays(arrays) = values else { return values.cell(bytes) };
    let (head, start) = arrays::npy(bytes)?;
    match head {
        _ if *arrays == Arrays::Mixed => values.cell(bytes),
        Some(head) if arrays.holds(&head) => {
            let found = &bytes[start..];
            match head.bytes() {
                Some(expected) if expected == found.len() as u64 => values.cell(found),
                _ => {
                    Err(format!("has {} bytes of values, which its header does not say", found.len()).into())
                }
            }
        }
        _ => Err("is no array like those before it".into()),
    }
}

/// The first key that comes again after another, as an error.
pub(super) fn first_again(
    tar: &Tar,
    under: Option<&str>,
    twice: &Twice,
) -> Result<Option<IngestError>, IngestError> {
    let (mut seen, mut last, mut found) = (HashSet::new(), String::new(), None);
    tar.look(|member| {
        let Some((key, _)) = keyed::within(&member.name, under).filter(|(key, _)| *key != last) else {
            return Ok(());
        };
        last = key.to_owned();
        if found.is_none() && twice.may_hold(key) && !seen.insert(key.to_owned()) {
            found = Some(again(member, key));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Whether a key comes again with a member that makes a sample of it, though the first lies further up.
pub(super) fn has_scattered(tar: &Tar, under: Option<&str>, twice: &Twice) -> Result<bool, IngestError> {
    let (mut first, mut found) = (HashMap::new(), false);
    tar.look(|member| {
        let Some((key, suffix)) = keyed::within(&member.name, under) else { return Ok(()) };
        if !found && member.fault.is_none() && twice.may_hold(key) {
            let first: &String = first.entry(key.to_owned()).or_insert_with(|| suffix.to_owned());
            found = keyed::belong_together(first, suffix);
        }
        Ok(())
    })?;
    Ok(found)
}

fn again(member: &Member<'_>, key: &str) -> IngestError {
    member.misfit(&format!(
        "is of sample {key:?}, whose other members lie further up; members of a sample must lie side by side (`tar \
         --sort=name` puts them so), and each sample needs a key of its own; for images alone say `format`: archive"
    ))
}

/// Refuses samples that lack what others have.
fn check_complete(tars: &Tars, columns: &keyed::Columns, samples: u64) -> Result<(), IngestError> {
    let Some(at) = columns.counts.iter().position(|&count| count < samples) else { return Ok(()) };
    let mut first = None;
    for tar in &tars.tars {
        // The sample begun, and whether it has the column.
        let mut begun: Option<(String, bool)> = None;
        tar.look(|member| {
            let Some((key, suffix)) = keyed::within(&member.name, tars.under.as_deref()) else {
                return Ok(());
            };
            if begun.as_ref().is_none_or(|(begun, _)| begun != key)
                && let Some((key, false)) = begun.replace((key.to_owned(), false))
            {
                first.get_or_insert(tar.name_of(&key));
            }
            let is_it = columns.of_suffix.get(suffix) == Some(&Some(at));
            begun.as_mut().expect("begun above").1 |= is_it;
            Ok(())
        })?;
        if let Some((key, false)) = begun {
            first.get_or_insert(tar.name_of(&key));
        }
        if first.is_some() {
            break;
        }
    }
    Err(IngestError::Incomplete {
        path: tars.path.clone(),
        column: columns.columns[at].name.clone(),
        lacking: samples - columns.counts[at],
        samples,
        first: first.unwrap_or_default(),
    })
}
