//! `index.json` of LitData: its chunks, and the tree of values that each sample is. Pure functions on bytes from outside.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::source::mds::format::{FileInfo, Packing, ShardInfo};

type Reason = String;

/// Deeper trees of values are taken for damage.
const DEEPEST: usize = 32;

/// The content of an index.
#[derive(Debug)]
pub(in crate::source::mds) struct Index {
    /// Chunks, as shards whose columns are leaves of the tree.
    pub(in crate::source::mds) chunks: Vec<ShardInfo>,
    pub(in crate::source::mds) packing: Packing,
    /// Whether a sample is its only value, without sizes before it.
    pub(in crate::source::mds) is_bare: bool,
}

#[derive(Deserialize)]
struct File {
    chunks: Vec<Chunk>,
    config: Config,
}

#[derive(Deserialize)]
struct Chunk {
    chunk_bytes: u64,
    chunk_size: u64,
    filename: String,
}

#[derive(Deserialize)]
struct Config {
    compression: Option<String>,
    compression_level: Option<String>,
    data_format: Option<Vec<String>>,
    data_spec: Option<String>,
    encryption: Option<Value>,
    item_loader: Option<String>,
}

/// A node of the tree, as PyTorch's pytrees are written.
#[derive(Deserialize)]
struct Node {
    r#type: Option<String>,
    context: Option<String>,
    children_spec: Vec<Node>,
}

impl Index {
    pub(in crate::source::mds) fn parse(bytes: &[u8]) -> Result<Index, Reason> {
        let file: File = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Config { compression, compression_level, data_format, data_spec, encryption, item_loader } =
            file.config;
        if encryption.is_some() {
            return Err("its chunks are encrypted; write them without `encryption`".to_owned());
        }
        let is_bare = match item_loader.as_deref() {
            None | Some("PyTreeLoader") => false,
            Some("TokensLoader") => true,
            Some("ParquetLoader") => {
                return Err("its chunks are Parquet files; ingest those themselves".to_owned());
            }
            Some(other) => {
                return Err(format!(
                    "its chunks are those of {other}; only PyTreeLoader and TokensLoader are read"
                ));
            }
        };
        let packing = match (compression.as_deref(), compression_level.as_deref()) {
            (None, _) => Packing::Plain,
            (Some(codec), _) if codec != "zstd" && !codec.starts_with("zstd:") => {
                return Err(format!("it is compressed by {codec:?}; only zstd is read"));
            }
            (Some(_), None | Some("" | "chunk")) => Packing::Whole,
            (Some(_), Some("batch")) => Packing::Frames,
            (Some(_), Some("sample")) => Packing::Samples,
            (Some(_), Some(other)) => {
                return Err(format!("it is compressed at level {other:?}, which is not read"));
            }
        };
        let formats = data_format.ok_or("it has no `data_format`")?;
        let names = names(data_spec.as_deref())?
            .unwrap_or_else(|| (0..formats.len()).map(|at| at.to_string()).collect());
        if names.len() != formats.len() {
            return Err(format!("it has {} values of {} formats", names.len(), formats.len()));
        }
        let chunk = |chunk: Chunk| ShardInfo {
            version: 2,
            samples: chunk.chunk_size,
            compression: None,
            column_names: names.clone(),
            column_encodings: formats.clone(),
            column_sizes: vec![None; formats.len()],
            raw_data: FileInfo {
                basename: chunk.filename,
                bytes: chunk.chunk_bytes,
                hashes: BTreeMap::new(),
            },
            zip_data: None,
        };
        Ok(Index { chunks: file.chunks.into_iter().map(chunk).collect(), packing, is_bare })
    }
}

/// The names of the leaves of a tree: keys and places, with dots between them.
fn names(spec: Option<&str>) -> Result<Option<Vec<String>>, Reason> {
    let Some(spec) = spec else { return Ok(None) };
    let unread = |error: serde_json::Error| format!("its `data_spec` is not read ({error})");
    let (version, root): (u64, Node) = serde_json::from_str(spec).map_err(unread)?;
    if version != 1 {
        return Err(format!("its `data_spec` is of version {version}, only 1 is read"));
    }
    let mut names = Vec::new();
    leaves(&root, "", 0, &mut names)?;
    if let [only] = names.as_mut_slice()
        && only.is_empty()
    {
        *only = "data".to_owned();
    }
    Ok(Some(names))
}

fn leaves(node: &Node, prefix: &str, depth: usize, names: &mut Vec<String>) -> Result<(), Reason> {
    if depth > DEEPEST {
        return Err("its `data_spec` is too deep".to_owned());
    }
    let Some(kind) = &node.r#type else {
        names.push(prefix.to_owned());
        return Ok(());
    };
    let keys: Vec<String> = match kind.as_str() {
        "builtins.dict" | "collections.OrderedDict" => {
            let keys: Vec<Value> = serde_json::from_str(node.context.as_deref().unwrap_or_default())
                .map_err(|error| format!("its `data_spec` is not read ({error})"))?;
            keys.into_iter().map(|key| key.as_str().map_or_else(|| key.to_string(), str::to_owned)).collect()
        }
        "builtins.list" | "builtins.tuple" | "collections.deque" => {
            (0..node.children_spec.len()).map(|at| at.to_string()).collect()
        }
        other => {
            return Err(format!("its samples are of type {other}; only dicts, lists and tuples are read"));
        }
    };
    if keys.len() != node.children_spec.len() {
        return Err(format!(
            "its `data_spec` has {} keys of {} values",
            keys.len(),
            node.children_spec.len()
        ));
    }
    for (key, child) in keys.iter().zip(&node.children_spec) {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        leaves(child, &name, depth + 1, names)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn index(config: &str) -> Result<Index, Reason> {
        let chunk = r#"{"chunk_bytes": 9, "chunk_size": 1, "dim": null, "filename": "chunk-0-0.bin"}"#;
        Index::parse(format!(r#"{{"chunks": [{chunk}], "config": {config}}}"#).as_bytes())
    }

    #[test]
    fn leaves_are_named_by_their_keys_and_places() {
        let names = |spec: &str| names(Some(&format!("[1, {spec}]"))).map(Option::unwrap);
        let list =
            format!(r#"{{"type": "builtins.list", "context": "null", "children_spec": [{LEAF}, {LEAF}]}}"#);
        let dict = format!(
            r#"{{"type": "builtins.dict", "context": "[\"a\", 7]", "children_spec": [{list}, {LEAF}]}}"#
        );
        assert_eq!(names(LEAF).unwrap(), ["data"]);
        assert_eq!(names(&list).unwrap(), ["0", "1"]);
        assert_eq!(names(&dict).unwrap(), ["a.0", "a.1", "7"]);
        let odd = LEAF.replacen("null", "\"x.Point\"", 1);
        assert!(names(&odd).unwrap_err().contains("x.Point"));
        assert!(super::names(Some("[2, 3]")).is_err() && super::names(Some("{")).is_err());
        let deep = (0..40).fold(LEAF.to_owned(), |inner, _| {
            format!(r#"{{"type": "builtins.list", "context": "null", "children_spec": [{inner}]}}"#)
        });
        assert!(names(&deep).unwrap_err().contains("too deep"));
    }

    #[test]
    fn an_index_says_how_chunks_are_packed() {
        let packing = |compression: &str| {
            index(&format!(r#"{{{compression} "data_format": ["int"], "item_loader": "PyTreeLoader"}}"#))
                .map(|index| index.packing)
        };
        assert_eq!(packing(""), Ok(Packing::Plain));
        assert_eq!(packing(r#""compression": "zstd","#), Ok(Packing::Whole));
        assert_eq!(packing(r#""compression": "zstd:3", "compression_level": "batch","#), Ok(Packing::Frames));
        assert_eq!(packing(r#""compression": "zstd", "compression_level": "sample","#), Ok(Packing::Samples));
        for (config, reason) in [
            (r#"{"compression": "lz4", "data_format": []}"#, "only zstd"),
            (r#"{"data_format": ["int"], "encryption": {"algorithm": "fernet"}}"#, "encrypted"),
            (r#"{"data_format": ["parquet"], "item_loader": "ParquetLoader"}"#, "Parquet files"),
            (r#"{"data_format": ["bytes"], "item_loader": "TemporalArrayLoader"}"#, "TemporalArrayLoader"),
            (r#"{"data_format": null}"#, "no `data_format`"),
            ("{}", "no `data_format`"),
        ] {
            assert!(index(config).unwrap_err().contains(reason), "{config}");
        }
        assert!(index(r#"{"data_format": ["int"], "item_loader": "TokensLoader"}"#).unwrap().is_bare);
    }
}
