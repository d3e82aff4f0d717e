//! Runs that are removed, as nodes see it.

use shardd_store::catalog::{CatalogBackend, CatalogError, RemoveRun, RunState as State};

use super::*;

/// Waits until all engines are so.
async fn until(world: &World, what: &str, is_so: impl Fn(&Engine) -> bool) {
    let all = async {
        while !world.engines.iter().all(|engine| is_so(engine)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_run_leaves_the_caches_and_its_name_to_another() {
    let world = World::new(3, "0.3").await;
    world.know_each_other(3).await;
    let name = run("once");
    world.attach(&name, 3, 0).await;
    world.read_epoch(&name, 3, 0, async |_, _| {}).await;
    until(&world, "the caches are filled", |engine| {
        engine.known_run(&name).is_some_and(|run| run.filling.has_filled(1, run.generation()))
    })
    .await;
    world.has_come(0, &[1, 2, 3]).await;
    assert!(world.engines.iter().all(|engine| !engine.cache.is_empty()));

    let meta: Arc<dyn Metastore> = Arc::clone(&world.meta) as _;
    let catalog = CatalogBackend::new(Arc::clone(world.engines[0].origin()), meta);
    let state = async || catalog.run_info(&name).await.expect("it is there").state;
    assert_eq!(state().await, State::Running);
    let refused = catalog.remove_run(&name, RemoveRun::default()).await.expect_err("ranks are attached");
    assert!(matches!(refused, CatalogError::Running { .. }), "{refused}");
    for (rank, engine) in (0..).zip(&world.engines) {
        engine.detach(&name, rank).await.expect("it was attached");
    }
    assert_eq!(state().await, State::Finished);
    catalog.remove_run(&name, RemoveRun::default()).await.expect("no rank reads");
    until(&world, "the run is forgotten", |engine| {
        engine.known_run(&name).is_none()
            && engine.cache.is_empty()
            && !engine.placements().contains_key(&name)
    })
    .await;
    let gone =
        world.engines[0].attach(&name, 0, Attach { world: 1, epoch: 0 }).await.expect_err("there is none");
    assert!(matches!(gone, EngineError::UnknownRun { .. }), "{gone}");
    let left = world.meta.list("").await.expect("lists").entries;
    let left: Vec<_> = left.iter().map(|(key, _)| key).filter(|key| key.contains("/once")).collect();
    assert_eq!(left, [""; 0], "nothing is left of it");

    world.attach(&name, 2, 0).await;
    world.read_epoch(&name, 2, 0, async |_, _| {}).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_attaches_while_its_run_is_removed_is_refused_or_keeps_it() {
    let world = World::new(1, "0.3").await;
    world.know_each_other(1).await;
    let meta: Arc<dyn Metastore> = Arc::clone(&world.meta) as _;
    let catalog = CatalogBackend::new(Arc::clone(world.engines[0].origin()), meta);
    for number in 0..50 {
        let name = run(&format!("r{number}"));
        let create = CreateRun { id: name.clone(), plan: world.plan.id(), virtual_ranks: VIRTUAL_RANKS };
        world.engines[0].create_run(create).await.expect("created");
        let attach = Attach { world: 1, epoch: 0 };
        let (attached, removed) = tokio::join!(
            world.engines[0].attach(&name, 0, attach),
            catalog.remove_run(&name, RemoveRun::default())
        );
        let there = world.meta.list(&format!("ranks/{name}")).await.expect("lists").entries.len();
        match (&attached, &removed) {
            (Ok(_), Err(CatalogError::Running { .. })) => assert_eq!(there, 1, "{name}"),
            (Err(EngineError::UnknownRun { .. }), _) => assert_eq!(there, 0, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    world.end().await;
}
