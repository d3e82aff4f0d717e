//! Archives whose members belong together by key, as WebDataset has them: `path/key.column.type`. Learns from the names,
//! and from the heads of arrays and first images, which columns there are. Pure: names in, columns out.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::ipc;
use shardfmt::shard::schema_from;

use super::arrays::{self, Arrays};
use super::cells::{Column, Values};
use super::images;
use super::picture::Pictures;
use crate::image_size::ImageSize;
use crate::tree::is_hidden;
use crate::{IngestConfig, IngestError};

/// A schema takes less.
pub(super) const LONGEST_SCHEMA: u64 = 16 << 20;
/// The column of keys.
pub(super) const KEY_COLUMN: &str = "key";
/// More endings than this are no columns.
const MOST_KINDS: usize = 1024;
/// A column that holds members of several endings, and the types that integers come under.
const INTEGERS: [&str; 7] = ["cls", "cls2", "class", "count", "index", "inx", "id"];
const TEXTS: [&str; 3] = ["txt", "text", "transcript"];
const JSONS: [&str; 2] = ["json", "jsn"];

/// The key of a member and what follows it; `None` for a file that is not a member of a sample.
pub(super) fn split(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    if name.split('/').any(is_hidden) || (name[base..].starts_with("__") && name.ends_with("__")) {
        return None;
    }
    let dot = base + name[base..].find('.')?;
    let (key, suffix) = (&name[..dot], &name[dot + 1..]);
    (dot > base && !suffix.is_empty()).then_some((key, suffix))
}

/// The same of a name in a folder; `None` for one that lies elsewhere.
pub(super) fn within<'n>(name: &'n str, under: Option<&str>) -> Option<(&'n str, &'n str)> {
    images::below(name, under).and_then(|_| split(name))
}

/// Whether members of one key and these endings make a sample: one of them at least is no image.
pub(super) fn belong_together(one: &str, other: &str) -> bool {
    let is_picture = |suffix: &str| Kind::new(suffix).content == Type::Picture;
    one != other && !(is_picture(one) && is_picture(other))
}

/// The type of members with one ending, where it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Picture,
    Integer,
    Text,
    Json,
    Npy,
    Bytes,
}

impl Type {
    /// Of the ending after the last dot.
    fn of(ending: &str) -> Type {
        let ending = ending.to_ascii_lowercase();
        if images::is_named(&format!("x.{ending}")) {
            Type::Picture
        } else if INTEGERS.contains(&ending.as_str()) {
            Type::Integer
        } else if TEXTS.contains(&ending.as_str()) {
            Type::Text
        } else if JSONS.contains(&ending.as_str()) {
            Type::Json
        } else if ending == "npy" {
            Type::Npy
        } else {
            Type::Bytes
        }
    }
}

/// Members of one ending.
#[derive(Debug)]
struct Kind {
    suffix: String,
    /// The column they go to, if no others get in the way.
    column: String,
    content: Type,
    count: u64,
    arrays: Option<Arrays>,
    /// The header of the last array; most are the same.
    header: Vec<u8>,
    size: Option<ImageSize>,
}

impl Kind {
    fn new(suffix: &str) -> Kind {
        let (column, ending) = suffix.rsplit_once('.').unwrap_or(("", suffix));
        let content = Type::of(ending);
        let column = match (column, content, ending) {
            ("", Type::Picture, _) => "image",
            ("", Type::Integer, "cls") => "label",
            ("", Type::Text, "txt") => "text",
            ("", Type::Json, "jsn") => "json",
            ("", _, ending) => ending,
            (column, _, _) => column,
        };
        Kind {
            suffix: suffix.to_owned(),
            column: column.to_owned(),
            content,
            count: 0,
            arrays: None,
            header: Vec::new(),
            size: None,
        }
    }
}

/// The columns by the names of members.
#[derive(Debug, Default)]
pub(super) struct Survey {
    kinds: Vec<Kind>,
    index: HashMap<String, usize>,
    pub(super) keys: u64,
    /// The members of the sample begun: its key and their kinds.
    run: Option<(String, Vec<usize>)>,
    /// Columns that two members of one sample go to.
    crowded: BTreeSet<String>,
    /// Whether some sample has members of different endings, of which one at least is no image.
    is_keyed: bool,
    has_too_many: bool,
}

impl Survey {
    /// Takes note of a member. Returns whether a sample begins, or why it cannot be.
    pub(super) fn add(&mut self, key: &str, suffix: &str) -> Result<bool, &'static str> {
        let begins = self.run.as_ref().is_none_or(|(begun, _)| begun != key);
        if begins {
            self.end_run();
            self.keys += 1;
            self.run = Some((key.to_owned(), Vec::new()));
        }
        let Some(kind) = self.kind(suffix) else { return Ok(begins) };
        let (_, run) = self.run.as_mut().expect("begun above");
        if run.contains(&kind) {
            return Err("is there twice");
        }
        run.push(kind);
        self.kinds[kind].count += 1;
        Ok(begins)
    }

    /// Must be called between archives and after the last: a sample does not continue in the next one.
    pub(super) fn end_run(&mut self) {
        let Some((_, run)) = self.run.take() else { return };
        if let [first, others @ ..] = run.as_slice() {
            let is_picture = |kind: &usize| self.kinds[*kind].content == Type::Picture;
            self.is_keyed |= !others.is_empty() && !run.iter().all(is_picture);
            for (at, kind) in others.iter().enumerate() {
                let column = &self.kinds[*kind].column;
                let is_taken = *column == self.kinds[*first].column
                    || others[..at].iter().any(|other| *column == self.kinds[*other].column);
                if is_taken && !self.crowded.contains(column) {
                    self.crowded.insert(column.clone());
                }
            }
        }
    }

    /// Whether the size of an image is to be seen: it is the first of its ending.
    pub(super) fn wants_size(&self, suffix: &str) -> bool {
        self.known(suffix).is_some_and(|kind| kind.content == Type::Picture && kind.size.is_none())
    }

    /// Whether the header of an array is to be seen.
    pub(super) fn wants_header(&self, suffix: &str) -> bool {
        self.known(suffix).is_some_and(|kind| kind.content == Type::Npy && kind.arrays != Some(Arrays::Mixed))
    }

    fn known(&self, suffix: &str) -> Option<&Kind> {
        self.index.get(suffix).map(|kind| &self.kinds[*kind])
    }

    /// Takes note of the beginning of an array.
    pub(super) fn see_header(&mut self, suffix: &str, head: &[u8]) -> Result<(), String> {
        let Some(kind) = self.index.get(suffix).map(|kind| &mut self.kinds[*kind]) else { return Ok(()) };
        if !kind.header.is_empty() && head.starts_with(&kind.header) {
            return Ok(());
        }
        let (said, start) = arrays::npy(head)?;
        kind.header = head[..start].to_vec();
        kind.arrays = Some(Arrays::and(kind.arrays.take(), said));
        Ok(())
    }

    /// Takes note of the size of the first image.
    pub(super) fn see_size(&mut self, suffix: &str, size: ImageSize) {
        if let Some(kind) = self.index.get(suffix) {
            self.kinds[*kind].size.get_or_insert(size);
        }
    }

    /// Takes note of whether some key comes again further down with what makes it a sample of several members.
    pub(super) fn see_scattered(&mut self, is_scattered: bool) {
        self.is_keyed |= is_scattered;
    }

    /// Whether it looks as if members belonged together by key.
    pub(super) fn is_keyed(&self) -> bool {
        self.is_keyed
    }

    fn kind(&mut self, suffix: &str) -> Option<usize> {
        if let Some(kind) = self.index.get(suffix) {
            return Some(*kind);
        }
        if self.kinds.len() == MOST_KINDS {
            self.has_too_many = true;
            return None;
        }
        self.kinds.push(Kind::new(suffix));
        self.index.insert(suffix.to_owned(), self.kinds.len() - 1);
        Some(self.kinds.len() - 1)
    }

    /// The columns: that of keys, then the others in the order in which members of them first came.
    pub(super) fn columns(&self, path: &Path, config: &IngestConfig) -> Result<Columns, IngestError> {
        if self.has_too_many {
            let reason = format!("members have more than {MOST_KINDS} different endings after their keys");
            let way_out =
                "what follows the first dot of a name is a column; say `format`: archive for images alone";
            return Err(IngestError::Config { setting: "format", reason, way_out });
        }
        let key = Column { name: KEY_COLUMN.to_owned(), nullable: false, values: Values::Text };
        let mut columns = Columns { columns: vec![key], of_suffix: HashMap::new(), counts: vec![self.keys] };
        let mut shared = HashMap::new();
        for kind in &self.kinds {
            let is_alone = self.is_crowded_out(kind);
            let known = if is_alone { None } else { shared.get(&kind.column).copied() };
            let column = match known {
                Some(column) => column,
                None => {
                    let name = if is_alone { &kind.suffix } else { &kind.column };
                    let values = self.values(kind, name, path, config)?;
                    columns.columns.push(Column { name: name.clone(), nullable: false, values });
                    columns.counts.push(0);
                    columns.columns.len() - 1
                }
            };
            if !is_alone {
                shared.insert(&kind.column, column);
            }
            columns.counts[column] += kind.count;
            columns.of_suffix.insert(kind.suffix.clone(), Some(column));
        }
        columns.check(path, config)?;
        for (at, column) in columns.columns.iter_mut().enumerate() {
            column.nullable = config.allow_missing && columns.counts[at] < self.keys;
        }
        if let Some(asked) = &config.columns {
            columns.keep(asked);
        }
        Ok(columns)
    }

    /// Whether the members of a kind cannot go to the column that their ending stands for, since others go there: in the
    /// same sample, or of another type.
    fn is_crowded_out(&self, kind: &Kind) -> bool {
        let mut others =
            self.kinds.iter().filter(|other| other.column == kind.column && other.suffix != kind.suffix);
        let differs = |other: &Kind| other.content != kind.content || kind.content == Type::Npy;
        self.crowded.contains(&kind.column) || others.any(differs)
    }

    fn values(
        &self,
        kind: &Kind,
        name: &str,
        path: &Path,
        config: &IngestConfig,
    ) -> Result<Values, IngestError> {
        if let Some(chosen) = config.types.get(name) {
            return match chosen.as_str() {
                "Utf8" => Ok(Values::Text),
                "Binary" => Ok(Values::Bytes),
                "Int64" => Ok(Values::Integer),
                other => Err(IngestError::Config {
                    setting: "types",
                    reason: format!("column {name:?} of a WebDataset cannot be {other}"),
                    way_out: "choose Utf8, Binary or Int64, or leave it out",
                }),
            };
        }
        Ok(match kind.content {
            Type::Picture => Values::Picture(Pictures::new(config, || {
                let found = format!("none of the images {:?} can be read", kind.suffix);
                kind.size.ok_or_else(|| IngestError::NoSamples { path: path.to_owned(), found })
            })?),
            Type::Integer => Values::Integer,
            Type::Text => Values::Text,
            Type::Json => Values::Json,
            Type::Npy => Values::Arrays(kind.arrays.clone().unwrap_or(Arrays::Mixed)),
            Type::Bytes => Values::Bytes,
        })
    }
}

/// The columns of samples that are joined by key.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) columns: Vec<Column>,
    /// Which of them members of an ending go to; `None` for those of no column that is asked for.
    pub(super) of_suffix: HashMap<String, Option<usize>>,
    /// How many samples have each.
    pub(super) counts: Vec<u64>,
}

impl Columns {
    /// Refuses two columns of one name, and settings for columns that there are not.
    fn check(&self, path: &Path, config: &IngestConfig) -> Result<(), IngestError> {
        for (at, column) in self.columns.iter().enumerate() {
            if self.columns[..at].iter().any(|earlier| earlier.name == column.name) {
                return Err(IngestError::Column {
                    path: path.to_owned(),
                    column: column.name.clone(),
                    data_type: column.field().data_type().to_string(),
                    reason: "another column has the same name".to_owned(),
                });
            }
        }
        let there: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let asked = config.columns.iter().flatten().find(|column| !there.contains(&column.as_str()));
        let typed = config.types.keys().find(|column| !there[1..].contains(&column.as_str()));
        match asked.or(typed) {
            None => Ok(()),
            Some(column) => Err(IngestError::NoColumn {
                path: path.to_owned(),
                column: column.clone(),
                there: there.join(", "),
            }),
        }
    }

    /// Leaves out columns that are not asked for, but for the key.
    fn keep(&mut self, asked: &[String]) {
        let mut moved = Vec::new();
        let mut kept = 0;
        for (at, column) in self.columns.iter().enumerate() {
            let is_kept = at == 0 || asked.contains(&column.name);
            moved.push(is_kept.then_some(kept));
            kept += usize::from(is_kept);
        }
        let mut is_kept = moved.iter().map(Option::is_some);
        self.columns.retain(|_| is_kept.next() == Some(true));
        let mut is_kept = moved.iter().map(Option::is_some);
        self.counts.retain(|_| is_kept.next() == Some(true));
        self.of_suffix.values_mut().for_each(|column| *column = column.and_then(|column| moved[column]));
    }

    pub(super) fn schema(&self) -> SchemaRef {
        let fields: Vec<Field> = self.columns.iter().map(Column::field).collect();
        Arc::new(Schema::new(fields))
    }
}

/// The schema in an archive that says its own: an encapsulated message.
pub(super) fn schema_of(message: &[u8]) -> Result<SchemaRef, String> {
    let framed = message.strip_prefix(&[0xff; 4]).and_then(|rest| rest.split_first_chunk());
    let (length, rest) = framed.ok_or("is no schema, or cut off")?;
    let message = rest.get(..u32::from_le_bytes(*length) as usize).ok_or("is cut off")?;
    let message = ipc::root_as_message(message).map_err(|error| format!("is no schema ({error})"))?;
    let schema = message.header_as_schema().ok_or("is no schema")?;
    Ok(Arc::new(schema_from(schema)?))
}
