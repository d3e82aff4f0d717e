//! Stories of operators: overrides of the exchange, evictions and explanations while engines work.

use shardd_api::drain::Drain;
use shardd_api::evict::Evict;
use shardd_api::exchange::{ChangeExchange, ExchangeRate, RateOverride};
use shardd_api::explain::{MissSource, Wanted};

use super::*;

async fn settles(engine: &Engine, wanted: ExchangeSettings) {
    let mut settings = engine.exchange.settings.subscribe();
    let settled = settings.wait_for(|now| *now == wanted);
    tokio::time::timeout(Duration::from_secs(60), settled).await.expect("in time").expect("the engine lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_the_exchange_reaches_every_node_also_one_that_comes_later() {
    let mut cluster = World::new(2, "0.3").await;
    cluster.know_each_other(2).await;
    let (own, slow) = (ExchangeSettings::default(), ExchangeRate::Most(ByteSize::mib(50)));
    let pause = ChangeExchange { paused: Some(true), ..ChangeExchange::default() };
    cluster.engines[0].change_exchange(&pause).await.expect("said");
    cluster.caches.push(TempDir::new().expect("a temporary directory"));
    cluster.start(3).await;
    for engine in &cluster.engines {
        settles(engine, ExchangeSettings { paused: true, ..own }).await;
    }
    let rate = Some(RateOverride::Rate(slow));
    let of_two = ChangeExchange { node: Some(node(2)), rate, paused: Some(false) };
    cluster.engines[1].change_exchange(&of_two).await.expect("said");
    settles(&cluster.engines[1], ExchangeSettings { rate: slow, paused: false }).await;
    settles(&cluster.engines[2], ExchangeSettings { paused: true, ..own }).await;
    let resume = ChangeExchange { paused: Some(false), ..ChangeExchange::default() };
    cluster.engines[2].change_exchange(&resume).await.expect("said");
    settles(&cluster.engines[0], own).await;
    settles(&cluster.engines[1], ExchangeSettings { rate: slow, paused: false }).await;
    let of_none = ChangeExchange { node: Some(node(9)), ..resume };
    let refused = cluster.engines[0].change_exchange(&of_none).await.expect_err("no such node");
    assert!(refused.to_string().contains("n9 is not among"), "{refused}");
    // The overrides of a later release stay, and so do those understood before.
    let later = br#"{"all":{"rate":"as the moon has it"}}"#.to_vec();
    cluster.meta.put("exchange/overrides", later.clone(), Expected::Any, None).await.expect("put");
    let refused = cluster.engines[0].change_exchange(&pause).await.expect_err("not understood");
    assert!(refused.to_string().contains("upgrade this node"), "{refused}");
    let entry = cluster.meta.get("exchange/overrides").await.expect("answers").expect("is there");
    assert_eq!(entry.value, later);
    settles(&cluster.engines[1], ExchangeSettings { rate: slow, paused: false }).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_costs_misses_and_it_is_told_who_gave_them() {
    let cluster = World::new(3, "0.3").await;
    cluster.know_each_other(3).await;
    let name = run("r");
    cluster.attach(&name, 3, 0).await;
    for engine in &cluster.engines {
        engine.set_exchange(ExchangeSettings { paused: true, ..ExchangeSettings::default() });
    }
    cluster.read_epoch(&name, 3, 0, async |_, _| {}).await;
    let waits = |engine: &Arc<Engine>| {
        let now = engine.exchange_now();
        now.paused && now.waiting.iter().any(|waiting| waiting.run == name && waiting.bytes > 0)
    };
    let all = async {
        while !cluster.engines.iter().all(waits) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("chunks that are due wait");
    cluster.read_epoch(&name, 3, 1, async |_, _| {}).await;
    for engine in &cluster.engines {
        let told = engine.misses(&name).await.expect("known");
        let from_before =
            told.counts.iter().filter(|count| count.epoch == 1 && count.source == MissSource::HostBefore);
        let bytes: u64 = from_before.filter(|count| count.from.is_some()).map(|count| count.bytes).sum();
        assert!(bytes > 0, "{told:?}");
    }
    // A grain that is hosted elsewhere, asked for here.
    let (one, two) = (&cluster.engines[0], &cluster.engines[1]);
    let state = one.run(&name).await.expect("known");
    let hosted = state.hosted_grains(&two.node, 1).into_iter();
    // Grains that come here in the next epoch may be on its way.
    let next = state.hosted_grains(&one.node, 2);
    let elsewhere = |grain: &GrainNo| !next.contains(grain) && !one.is_resident(&state, *grain);
    let grain = hosted.rev().find(elsewhere).expect("not all of them came from here or come here");
    one.locate(&name, request((0, 3), (1, 0), 1, Some(grain))).await.expect("located");
    let told = one.misses(&name).await.expect("known");
    let missed = told.latest.last().expect("one at least");
    assert_eq!((missed.epoch, missed.grain), (1, grain.0));
    assert_eq!((missed.source, missed.from.as_ref()), (MissSource::Host, Some(&two.node)));
    let count = told.counts.iter().find(|count| count.wanted == Wanted::ToRead && count.from == missed.from);
    assert!(count.is_some_and(|count| count.bytes > 0), "{told:?}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clearing_at_every_step_takes_nothing_that_a_run_needs_and_in_the_end_takes_all() {
    let cluster = World::new(3, "0.3").await;
    cluster.know_each_other(3).await;
    let name = run("r");
    cluster.attach(&name, 3, 0).await;
    let samples = cluster.plan.sample_count();
    for epoch in 0..4 {
        let at = async |cluster: &World, position| {
            for engine in &cluster.engines {
                engine.evict(Evict::default()).await.expect("cleared");
            }
            if position == samples {
                cluster.has_come(epoch, &[1, 2, 3]).await;
            }
        };
        cluster.read_epoch(&name, 3, epoch, at).await;
    }
    let share = cluster.origin_bytes() as f64 / cluster.manifest.bytes() as f64;
    assert!((1.0..=1.05).contains(&share), "{share}");

    for (rank, engine) in (0..).zip(&cluster.engines) {
        engine.detach(&name, rank).await.expect("detached");
    }
    let of = |version, dry_run| Evict { version, dry_run };
    let cleared = async {
        for engine in &cluster.engines {
            let mut launches = engine.watched.launches.subscribe();
            launches.wait_for(BTreeMap::is_empty).await.expect("the engine lives");
            let would = engine.evict(of(None, true)).await.expect("looked");
            assert!(would.cleared.grains > 0 && would.used_bytes > 0, "a dry run takes nothing");
            let other = engine.evict(of(Some(shardfmt::VersionId::of(b"?")), false)).await;
            assert!(matches!(other, Err(EngineError::Origin(OriginError::NotFound { .. }))), "{other:?}");
            let version = cluster.plan.document().version;
            // Grains that the exchange still brings have no reader.
            while engine.cache.used() > 0 {
                engine.evict(of(Some(version), false)).await.expect("cleared");
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), cleared).await.expect("nothing stays");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placement_is_explained_as_it_is_and_as_it_would_be() {
    let cluster = World::new(3, "0.3").await;
    cluster.know_each_other(3).await;
    let name = run("r");
    cluster.attach(&name, 1, 0).await;
    let told = cluster.engines[0].explain_placement(&name, None).await.expect("known");
    let placement = cluster.engines[0].view(&name).await.expect("known").placement.expect("placed");
    for partition in &told.partitions {
        assert_eq!(&partition.node, placement.host(partition.partition));
        assert_eq!((partition.rank, partition.reads_at.as_ref()), (Some(0), Some(&node(1))));
    }
    // Of 12 partitions, 8 are read elsewhere than where they are hosted.
    assert_eq!(told.remote_bytes_per_epoch, 8 * told.partition_bytes);
    assert_eq!((told.moves.len(), told.nodes.len()), (0, 3));

    let would = cluster.engines[0].explain_placement(&name, Some(&node(3))).await.expect("known");
    let left: u64 = would.moves.iter().map(|step| step.saved_bytes_per_epoch).sum();
    assert_eq!(would.remote_bytes_per_epoch - left, would.remote_bytes_per_epoch_then);
    assert_eq!(would.remote_bytes_per_epoch_then, 6 * would.partition_bytes, "two share then");
    assert!(would.moves.iter().all(|step| step.to != node(3)));
    for wrong in [node(9), node(1)] {
        cluster.engines[0].drain(&node(2), Some(Drain::Asked)).await.expect("drained");
        cluster.engines[0].drain(&node(3), Some(Drain::Asked)).await.expect("drained");
        assert!(cluster.engines[0].explain_placement(&name, Some(&wrong)).await.is_err(), "{wrong}");
    }
    cluster.end().await;
}
