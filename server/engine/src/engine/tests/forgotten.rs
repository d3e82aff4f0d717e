//! Rows that were forgotten, as nodes see it.

use shardd_store::catalog::FORGOTTEN;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_run_drop_what_they_have_of_a_forgotten_shard_and_take_no_more() {
    let world = World::new(2, "0.3").await;
    world.know_each_other(2).await;
    let name = run("r");
    world.attach(&name, 2, 0).await;
    world.read_epoch(&name, 2, 0, async |_, _| {}).await;
    let has = |engine: &Engine, shard| engine.cache.keys().iter().any(|key| key.shard == shard);
    let going = world.engines[0].cache.keys().first().expect("it has read an epoch").shard;
    assert!(world.manifest.shards.len() > 1, "others stay");

    world.engines[0].origin().put_forgotten(going).await.expect("puts");
    world.meta.put(FORGOTTEN, b"1".to_vec(), Expected::Any, None).await.expect("puts");
    let gone = async {
        while world.engines.iter().any(|engine| has(engine, going)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("they look when they hear of it");
    assert!(world.engines.iter().all(|engine| !engine.cache.is_empty()));
    let key = GrainKey { shard: going, rows: 4, index: 0 };
    let class = crate::cache::Class::until("r", 9);
    assert!(world.engines[1].cache.put(key, &class, b"grain").is_err());
    world.end().await;
}
