//! What the HTTP API's description says of values that other crates define, or that are checked texts: names, digests,
//! documents. Types that only describe; nothing is ever one of them.
//!
//! A checked text of this crate, such as the name of a node, has its schema beside its type.

use std::borrow::Cow;

use serde::Deserialize;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Describes a text by its pattern, for a type of that name.
macro_rules! text_schema {
    ($($name:ident: $pattern:literal, $about:literal;)*) => {$(
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::schema::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some($pattern))
                    .description(Some($about))
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )*};
}

pub(crate) use text_schema;

/// A BLAKE3 digest: the name of a version, commit, shard or plan.
#[derive(Debug)]
pub enum Digest {}
/// The name of a dataset.
#[derive(Debug)]
pub enum DatasetName {}
/// A dataset, or a version of it.
#[derive(Debug)]
pub enum DatasetRef {}
/// The name of a tag.
#[derive(Debug)]
pub enum TagName {}
/// A sum of row digests.
#[derive(Debug)]
pub enum DigestSum {}
/// The digest of a row.
#[derive(Debug)]
pub enum RowDigest {}
/// The origin of a version.
#[derive(Debug)]
pub enum Operation {}
/// Why a version was made.
#[derive(Debug)]
pub enum Message {}

#[cfg(feature = "openapi")]
text_schema! {
    Digest: "^[0-9a-f]{64}$", "BLAKE3, as 64 lower-case hexadecimal digits";
    DatasetName: "^[a-z0-9][a-z0-9._-]{0,62}$", "The name of a dataset";
    DatasetRef: "^[a-z0-9][a-z0-9._-]{0,62}(@([a-z0-9][a-z0-9._-]{0,62}|~[0-9]{1,6}))?$",
        "A dataset, or a version of it: NAME, NAME@TAG, NAME@3fa9c2 (the beginning of a version's id), NAME@~2 (two commits ago)";
    TagName: "^[a-z0-9][a-z0-9._-]{0,62}$", "The name of a tag";
    DigestSum: "^[0-9a-f]{32}$", "The sum of 128-bit row digests, as 32 hexadecimal digits";
    RowDigest: "^[0-9a-f]{32}$", "The digest of a row, as 32 hexadecimal digits";
    Operation: "^[a-z][a-z0-9-]{0,31}$", "What made a version: ingest, append, reshard, forget, restore, or another word";
    Message: "^[ -~]{0,1000}$", "Why, for people: at most 4096 bytes that a terminal can show";
}

/// A part of a partition's grains.
#[derive(Debug)]
pub enum Share {}

impl PartialSchema for Share {
    fn schema() -> RefOr<Schema> {
        let about = "A part of a partition's grains, in units of 2^-32";
        let units = ObjectBuilder::new().schema_type(Type::Integer).description(Some(about));
        units.minimum(Some(0)).maximum(Some(1u64 << 32)).into()
    }
}

impl ToSchema for Share {
    fn name() -> Cow<'static, str> {
        "Share".into()
    }
}

/// One step in the history of a dataset.
#[derive(Debug, ToSchema)]
pub struct Commit {
    /// 1 or 2, of `docs/VERSIONS.md`.
    pub format: u32,
    /// The dataset whose step it is.
    #[cfg_attr(feature = "openapi", schema(value_type = DatasetName))]
    pub dataset: String,
    /// The resulting version.
    #[cfg_attr(feature = "openapi", schema(value_type = Digest))]
    pub version: String,
    /// The digest of the version's provenance, if that was known.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Digest>, nullable = false))]
    pub provenance: Option<String>,
    /// The commit before; null for the first.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Digest>))]
    pub parent: Option<String>,
    /// How many commits there are up to this one.
    pub number: u64,
    /// When, in seconds since 1970.
    pub time: u64,
    /// By what.
    #[cfg_attr(feature = "openapi", schema(value_type = Operation))]
    pub operation: String,
    /// Why.
    pub message: String,
    /// Samples of the version.
    pub samples: u64,
    /// Bytes of its shards.
    pub bytes: u64,
    /// How many shards it has.
    pub shards: u64,
}

/// The document that fixes the order of every epoch of a version; `docs/PLAN.md` has it all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDocument {
    /// 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1))]
    pub format: u32,
    /// The version whose samples are ordered.
    #[cfg_attr(feature = "openapi", schema(value_type = Digest))]
    pub version: String,
    /// Chooses among all plans that are otherwise equal.
    pub seed: u64,
    /// The part of its grains that each partition exchanges after each epoch, in units of 2^-32; the last
    /// holds from then on.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 65536, value_type = Vec<Share>))]
    pub schedule: Vec<u64>,
    /// How many partitions the samples are held in.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub partitions: u32,
    /// Rows per grain, a power of two.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub grain_rows: u32,
    /// In how many parts an exchange is made.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub chunks: u32,
    /// Which grains a partition exchanges.
    pub selection: Selection,
    /// Where grains are in epoch 0.
    pub placement: InitialPlacement,
    /// In what order a partition's samples are read.
    #[cfg_attr(feature = "openapi", schema(value_type = Order))]
    pub order: serde_json::Value,
    /// The digest of its strata, if it has any.
    #[cfg_attr(feature = "openapi", schema(value_type = Digest))]
    #[serde(default)]
    pub strata: Option<String>,
}

/// Which grains a partition exchanges after an epoch.
#[derive(Debug, Deserialize, ToSchema)]
#[cfg_attr(feature = "openapi", schema(rename_all = "snake_case"))]
pub enum Selection {
    /// Every slot in turn.
    Cyclic,
    /// Chosen again after each epoch.
    Independent,
}

/// Where grains are in epoch 0.
#[derive(Debug, Deserialize, ToSchema)]
#[cfg_attr(feature = "openapi", schema(rename_all = "snake_case"))]
pub enum InitialPlacement {
    /// A partition holds consecutive grains of the manifest.
    Shards,
    /// Grains are spread at random.
    Random,
}

/// In what order a partition's samples are read in an epoch.
#[derive(Debug)]
pub enum Order {}

impl PartialSchema for Order {
    fn schema() -> RefOr<Schema> {
        let samples = ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(["samples"]))
            .description(Some("Any order of its samples is as likely as any other"));
        let slots = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(u32::MAX));
        let only =
            |object: ObjectBuilder| object.additional_properties(Some(AdditionalProperties::FreeForm(false)));
        let blocks = ObjectBuilder::new().property("slots", slots.description(Some("Slots per block")));
        let blocked = ObjectBuilder::new()
            .property("blocked", only(blocks.required("slots")))
            .required("blocked")
            .description(Some("Blocks of a few slots, one after the other, their samples shuffled"));
        OneOfBuilder::new().item(samples).item(only(blocked)).into()
    }
}

impl ToSchema for Order {
    fn name() -> Cow<'static, str> {
        "Order".into()
    }
}

/// The expected state of a tag that is to be set.
#[derive(Debug, ToSchema)]
#[cfg_attr(feature = "openapi", schema(rename_all = "snake_case"))]
pub enum TagExpected {
    /// There is no such tag.
    Absent,
    /// It is at this version.
    At(Digest),
    /// Nothing: it is moved from wherever it is.
    Any,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};
    use shardd_plan::{PlanDocument as RealPlan, PlanOptions, Shape};
    use shardfmt::VersionId;

    use super::*;

    /// The members that a schema describes.
    fn described<T: ToSchema>() -> BTreeSet<String> {
        let schema = serde_json::to_value(T::schema()).expect("a schema is JSON");
        schema["properties"].as_object().expect("an object").keys().cloned().collect()
    }

    fn members(value: &Value) -> BTreeSet<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    }

    #[test]
    fn documents_have_the_members_that_are_described() {
        let id = VersionId::of(b"v");
        let commit = json!({ "format": 2, "dataset": "d", "version": id, "provenance": id, "parent": null, "number": 1, "time": 0,
            "operation": "ingest", "message": "", "samples": 0, "bytes": 0, "shards": 0 });
        let real = shardfmt::Commit::from_bytes(commit.to_string().as_bytes()).expect("a commit");
        assert_eq!(members(&serde_json::to_value(real).expect("plain")), described::<Commit>());

        let shape = Shape { shard_rows: vec![100], row_bytes: 800 };
        let plan = RealPlan::with_defaults(id, &shape, PlanOptions::default()).expect("a plan");
        let mut of_plain_plans = described::<PlanDocument>();
        assert!(of_plain_plans.remove("strata"), "only stratified plans have them");
        assert_eq!(members(&serde_json::to_value(plan).expect("plain")), of_plain_plans);
    }
}
