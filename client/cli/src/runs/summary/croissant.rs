//! A dataset as Croissant 1.0 metadata (<https://docs.mlcommons.org/croissant/docs/croissant-spec.html>). Pure.
//!
//! Paths are those of the store, which is the directory or bucket that the metadata lies in.

use arrow::datatypes::DataType;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use shardd_store::training_data::{Column, Version};
use shardfmt::Manifest;

use super::about::Dataset;

/// The metadata of a version. `manifest` is its manifest, and `file` the bytes of that.
pub(super) fn metadata(version: &Version, about: &Dataset, manifest: &Manifest, file: &[u8]) -> Value {
    let shards = manifest.shards.iter().map(|shard| {
        let id = shard.id.to_string();
        format!("shards/{}/{id}.arrow", &id[..2])
    });
    let mut metadata = json!({
        "@context": context(),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": version.dataset,
        "identifier": format!("blake3:{}", version.version),
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": "manifest",
                "name": "manifest",
                "description": "The list of shards, with the digest of each and the schema of the samples",
                "contentUrl": format!("manifests/{}.arrow", version.version),
                "contentSize": format!("{} B", file.len()),
                "encodingFormat": ARROW,
                "sha256": hex(&Sha256::digest(file)),
            },
            {
                "@type": "cr:FileSet",
                "@id": "shards",
                "name": "shards",
                "description": "The samples. The name of each file is its BLAKE3 digest",
                "encodingFormat": ARROW,
                "includes": shards.collect::<Vec<_>>(),
            },
        ],
        "recordSet": [{
            "@type": "cr:RecordSet",
            "@id": "samples",
            "name": "samples",
            "field": version.columns.iter().zip(manifest.schema.fields()).map(|(column, known)| field(column, known.data_type())).collect::<Vec<_>>(),
        }],
    });
    let text = |text: &Option<String>| text.clone().map(Value::String);
    let declared = [
        ("description", text(&about.description)),
        ("alternateName", text(&about.title)),
        ("license", text(&about.license)),
        ("url", text(&about.url)),
        ("citeAs", text(&about.citation)),
        ("version", text(&about.version)),
        ("datePublished", text(&about.published)),
        ("creator", about.creator.as_ref().map(|name| json!({ "@type": "sc:Organization", "name": name }))),
        (
            "isBasedOn",
            match version.derived_from.is_empty() {
                true => None,
                false => {
                    Some(version.derived_from.iter().map(|base| json!(format!("blake3:{base}"))).collect())
                }
            },
        ),
    ];
    let known = metadata.as_object_mut().expect("it is an object");
    for (name, value) in declared {
        known.extend(value.map(|value| (name.to_owned(), value)));
    }
    metadata
}

const ARROW: &str = "application/vnd.apache.arrow.file";

fn field(column: &Column, arrow: &DataType) -> Value {
    let (data_type, is_repeated) = data_type(column, arrow);
    let mut field = json!({
        "@type": "cr:Field",
        "@id": format!("samples/{}", column.name),
        "name": column.name,
        "description": format!("Arrow type {}", column.data_type),
        "dataType": data_type,
        "source": {
            "fileSet": { "@id": "shards" },
            "extract": { "column": column.name },
        },
    });
    if is_repeated {
        field["repeated"] = Value::Bool(true);
    }
    field
}

/// The type of the values, and whether a sample has a list of them.
fn data_type(column: &Column, arrow: &DataType) -> (&'static str, bool) {
    let mut values = arrow;
    let mut is_repeated = false;
    while let DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) = values {
        values = item.data_type();
        is_repeated = true;
    }
    let of_values = match values {
        DataType::Boolean => "sc:Boolean",
        DataType::Date32 | DataType::Date64 => "sc:Date",
        DataType::Timestamp(..) => "sc:DateTime",
        number if number.is_integer() => "sc:Integer",
        number if number.is_numeric() => "sc:Float",
        // Bytes have no type of their own unless they are pictures, sounds or videos.
        _ => match column.media_type.and_then(|media| media.split('/').next()) {
            Some("image") => "sc:ImageObject",
            Some("audio") => "sc:AudioObject",
            Some("video") => "sc:VideoObject",
            _ => "sc:Text",
        },
    };
    (of_values, is_repeated)
}

/// The names that the standard's readers expect in the context.
fn context() -> Value {
    let mut context = Map::new();
    context.insert("@language".to_owned(), json!("en"));
    context.insert("@vocab".to_owned(), json!("https://schema.org/"));
    for (prefix, address) in [
        ("sc", "https://schema.org/"),
        ("cr", "http://mlcommons.org/croissant/"),
        ("rai", "http://mlcommons.org/croissant/RAI/"),
        ("dct", "http://purl.org/dc/terms/"),
    ] {
        context.insert(prefix.to_owned(), json!(address));
    }
    for name in [
        "citeAs",
        "column",
        "equivalentProperty",
        "extract",
        "field",
        "fileProperty",
        "fileObject",
        "fileSet",
        "format",
        "includes",
        "isLiveDataset",
        "jsonPath",
        "key",
        "md5",
        "parentField",
        "path",
        "recordSet",
        "references",
        "regex",
        "repeated",
        "replace",
        "samplingRate",
        "separator",
        "source",
        "subField",
        "transform",
    ] {
        context.insert(name.to_owned(), json!(format!("cr:{name}")));
    }
    context.insert("conformsTo".to_owned(), json!("dct:conformsTo"));
    context.insert("data".to_owned(), json!({ "@id": "cr:data", "@type": "@json" }));
    context.insert("dataType".to_owned(), json!({ "@id": "cr:dataType", "@type": "@vocab" }));
    context.insert("examples".to_owned(), json!({ "@id": "cr:examples", "@type": "@json" }));
    Value::Object(context)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
