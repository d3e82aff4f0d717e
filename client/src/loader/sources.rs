//! What a loader is to follow, opened: the versions it reads, their plans, and the order that these make.

use std::sync::Arc;

use arrow::datatypes::Schema;
use shardd_plan::{Mixture, MixtureDocument, MixturePhase, MixtureSource, Plan, PlanDocument};
use shardd_store::catalog::{Catalog, ClusterCatalog, StorePlace};
use shardfmt::Manifest;

use super::embedded::Stored;
use super::open_stores::Stores;
use super::order::Order;
use super::{CacheChoice, Follow, LoadError, LoaderSource, MixedSource, PlanRef, columns};

/// A version that is read, and by which plan.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Loader, LoaderConfig};
///
/// let loader = Loader::open(LoaderConfig::new(source, plan.clone(), 32))?;
/// let source = &loader.sources()[0];
/// assert_eq!(source.plan.id(), plan.id());
/// assert_eq!(source.manifest.sample_count(), 300);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Source {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The version.
    pub manifest: Arc<Manifest>,
}

impl Source {
    fn open(catalog: &dyn Catalog, plan: &PlanRef) -> Result<Self, LoadError> {
        let document = match plan {
            PlanRef::Id(id) => catalog.plan(*id)?,
            PlanRef::Document(document) => PlanDocument::clone(document),
        };
        let manifest = Arc::new(catalog.manifest(document.version)?);
        let plan = Arc::new(Plan::new(document, &manifest.shard_rows())?);
        Ok(Self { plan, manifest })
    }
}

/// The choices of an order.
pub(crate) struct Opened {
    /// At least one.
    pub(crate) sources: Vec<Source>,
    /// Where each of them lies, if not on nodes.
    pub(crate) stored: Vec<Stored>,
    pub(crate) order: Order,
    /// The columns that all have.
    pub(crate) schema: Schema,
}

impl Opened {
    pub(crate) fn open(follow: &Follow, shuffle: bool, cache: &CacheChoice) -> Result<Self, LoadError> {
        match follow {
            Follow::Plan { source: LoaderSource::Nodes { servers, .. }, .. } if servers.is_empty() => {
                Err(LoadError::NoServers)
            }
            Follow::Plan { source: LoaderSource::Nodes { servers, credentials, .. }, plan } => {
                let source = Source::open(&ClusterCatalog::with(servers, credentials), plan)?;
                Ok(Self::one(source, Vec::new(), shuffle))
            }
            Follow::Plan { source: LoaderSource::Store(place), plan } => {
                let (source, stored) = stored(&mut Stores::new(cache), place, plan)?;
                Ok(Self::one(source, vec![stored], shuffle))
            }
            Follow::Mixture { sources, epoch_size, phases } => {
                Self::several(sources, *epoch_size, phases, shuffle, cache)
            }
        }
    }

    fn one(source: Source, stored: Vec<Stored>, shuffle: bool) -> Self {
        let order = Order::of_plan(Arc::clone(&source.plan), shuffle);
        let schema = Schema::clone(&source.manifest.schema);
        Self { sources: vec![source], stored, order, schema }
    }

    fn several(
        mixed: &[MixedSource],
        epoch_size: Option<u64>,
        phases: &[MixturePhase],
        shuffle: bool,
        cache: &CacheChoice,
    ) -> Result<Self, LoadError> {
        let mut stores = Stores::new(cache);
        let opened = mixed.iter().map(|source| stored(&mut stores, &source.place, &source.plan));
        let (sources, stored): (Vec<Source>, Vec<Stored>) =
            opened.collect::<Result<Vec<_>, LoadError>>()?.into_iter().unzip();
        let described = sources.iter().zip(mixed).map(|(source, MixedSource { take, .. })| MixtureSource {
            plan: source.plan.id(),
            samples: source.plan.sample_count(),
            take: *take,
        });
        let document = MixtureDocument::with_phases(described.collect(), epoch_size, phases.to_vec())?;
        let mixture = Mixture::new(document)?;
        let named = sources.iter().enumerate().map(|(source_no, Source { plan, manifest })| {
            (format!("source {source_no} (plan {})", plan.id().short()), &*manifest.schema)
        });
        let schema = columns::common(named)?;
        let plans = sources.iter().map(|source| Arc::clone(&source.plan)).collect();
        Ok(Self { order: Order::of_mixture(mixture, plans, shuffle)?, sources, stored, schema })
    }
}

fn stored(
    stores: &mut Stores<'_>,
    place: &StorePlace,
    plan: &PlanRef,
) -> Result<(Source, Stored), LoadError> {
    let catalog = stores.at(place)?;
    let source = Source::open(catalog, plan)?;
    let stored = Stored { origin: catalog.origin(), manifest: Arc::clone(&source.manifest) };
    Ok((source, stored))
}
