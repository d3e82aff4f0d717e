use super::*;

/// The variables of a process by their names.
fn lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    |name| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned())
}

fn place_of(variables: &[(&str, &str)]) -> Result<Option<Place>, String> {
    place(lookup(variables)).map_err(|error| error.to_string())
}

fn machine_of(variables: &[(&str, &str)]) -> Result<Option<Machine>, String> {
    machine(lookup(variables)).map_err(|error| error.to_string())
}

/// A task of `srun --nodes 3 --ntasks-per-node 2`, as Slurm 22.05 started it.
const TASK: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "1441"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_NTASKS", "6"),
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_STEP_NODELIST", "gpu[07-09]"),
    ("SLURM_STEP_NUM_NODES", "3"),
    ("SLURM_STEP_NUM_TASKS", "6"),
];

fn with<'v>(variables: &[(&'v str, &'v str)], more: &[(&'v str, &'v str)]) -> Vec<(&'v str, &'v str)> {
    more.iter().chain(variables).copied().collect()
}

#[test]
fn torchrun_sets_rank_and_world_size() {
    assert_eq!(place_of(&[]), Ok(None));
    assert_eq!(place_of(&[("LOCAL_RANK", "0")]), Ok(None));
    let torchrun = [("RANK", "5"), ("WORLD_SIZE", " 8\n"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")];
    let expected = Place {
        launcher: Launcher::Torchrun,
        rank: WorldRank { rank: 5, world_size: 8, local_rank: Some(1) },
        local_world_size: Some(4),
        master: None,
    };
    assert_eq!(place_of(&torchrun), Ok(Some(expected.clone())));
    let named = with(&torchrun, &[("MASTER_ADDR", "gpu07")]);
    assert_eq!(place_of(&named), Ok(Some(Place { master: Some("gpu07:29500".to_owned()), ..expected })));
    assert_eq!(master(lookup(&[("MASTER_PORT", "1")])).as_deref(), Some("127.0.0.1:1"));
    for (variables, reason) in [
        (&[("RANK", "0")][..], "RANK is set in the environment, but WORLD_SIZE is not"),
        (&[("WORLD_SIZE", "4")], "WORLD_SIZE is set in the environment, but RANK is not"),
        (&[("RANK", "4"), ("WORLD_SIZE", "4")], "rank 4 is outside a world of 4"),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], "rank 0 is outside a world of 0"),
        (&[("RANK", "-1"), ("WORLD_SIZE", "4")], "RANK=\"-1\" in the environment is not a whole number"),
        (&[("RANK", ""), ("WORLD_SIZE", "4")], "RANK=\"\" in the environment"),
        (&[("RANK", "0"), ("WORLD_SIZE", "4294967296")], "WORLD_SIZE=\"4294967296\""),
        (&[("LOCAL_RANK", "one")], "LOCAL_RANK=\"one\""),
        (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "2")], "LOCAL_RANK 2 is outside a world of 2"),
    ] {
        let error = place_of(variables).expect_err(reason);
        assert!(error.contains(reason), "{variables:?}: {error}");
    }
}

#[test]
fn a_task_of_slurm_is_a_rank_that_meets_the_others_at_the_first_host() {
    let place = place_of(&TASK).unwrap().expect("a place");
    assert_eq!(place.launcher, Launcher::Slurm);
    assert_eq!(place.rank, WorldRank { rank: 3, world_size: 6, local_rank: Some(1) });
    assert_eq!(place.master.as_deref(), Some("gpu07:13058"));
    let other_port = with(&TASK, &[("MASTER_PORT", "7000")]);
    assert_eq!(place_of(&other_port).unwrap().unwrap().master.as_deref(), Some("gpu07:7000"));
    // torchrun, started by srun, has ranks of its own.
    let torchrun = with(&TASK, &[("RANK", "7"), ("WORLD_SIZE", "8")]);
    assert_eq!(place_of(&torchrun).unwrap().unwrap().launcher, Launcher::Torchrun);
}

#[test]
fn the_batch_script_of_a_slurm_job_is_no_rank() {
    let script = [
        ("SLURM_JOB_ID", "1"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "6"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NNODES", "3"),
    ];
    assert_eq!(place_of(&script), Ok(None));
    assert_eq!(machine_of(&script), Ok(None));
}

#[test]
fn steps_of_one_machine_listen_at_different_ports() {
    let port = |job: &str, step: &str| {
        let step = with(&TASK, &[("SLURM_JOB_ID", job), ("SLURM_STEP_ID", step)]);
        place_of(&step).unwrap().unwrap().master.unwrap()
    };
    let ports: std::collections::BTreeSet<String> =
        ["7", "8", "9"].iter().flat_map(|job| ["0", "1", "2"].map(|step| port(job, step))).collect();
    assert_eq!(ports.len(), 9);
    assert!(port("4294967295", "4294967294").starts_with("gpu07:"));
}

#[test]
fn mpi_names_no_host_unless_all_ranks_are_on_one() {
    let open_mpi = |size| {
        [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", size),
        ]
    };
    let place = place_of(&open_mpi("4")).unwrap().unwrap();
    assert_eq!((place.launcher, place.master.as_deref()), (Launcher::OpenMpi, Some("127.0.0.1:29500")));
    assert_eq!(place.rank, WorldRank { rank: 2, world_size: 4, local_rank: Some(0) });
    assert_eq!(place_of(&open_mpi("2")).unwrap().unwrap().master, None);
    let mpich =
        place_of(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")]);
    let mpich = mpich.unwrap().unwrap();
    assert_eq!((mpich.launcher, mpich.rank.rank, mpich.local_world_size), (Launcher::Mpich, 1, Some(2)));
}

#[test]
fn mpirun_in_a_job_of_slurm_numbers_the_ranks() {
    let mpi = |rank, size| with(&TASK, &[("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size)]);
    let place = place_of(&mpi("11", "24")).unwrap().unwrap();
    assert_eq!((place.launcher, place.rank.rank, place.rank.world_size), (Launcher::OpenMpi, 11, 24));
    let by_srun = with(&TASK, &[("PMI_RANK", "3"), ("PMI_SIZE", "6")]);
    assert_eq!(place_of(&by_srun), place_of(&TASK));
}

#[test]
fn a_machine_of_kubeflow_has_the_options_of_torchrun() {
    let pod = [
        ("PET_NNODES", "3"),
        ("PET_NODE_RANK", "2"),
        ("PET_NPROC_PER_NODE", "4"),
        ("PET_MASTER_ADDR", "train-node-0-0.train"),
        ("PET_MASTER_PORT", "29400"),
    ];
    let machine = machine_of(&pod).unwrap().unwrap();
    assert_eq!((machine.launcher, machine.number, machine.machines), (Launcher::Kubeflow, 2, 3));
    assert_eq!((machine.ranks, machine.master.as_deref()), (Some(4), Some("train-node-0-0.train:29400")));
    assert_eq!(machine_of(&with(&pod, &[("PET_NPROC_PER_NODE", "auto")])).unwrap().unwrap().ranks, None);
    let elastic = machine_of(&with(&pod, &[("PET_NNODES", "1:4")])).unwrap_err();
    assert!(elastic.contains("PET_NNODES=\"1:4\""), "{elastic}");
    let beyond = machine_of(&with(&pod, &[("PET_NODE_RANK", "3")])).unwrap_err();
    assert!(beyond.contains("machine 3 is outside of 3"), "{beyond}");
}

#[test]
fn one_task_of_slurm_starts_the_ranks_of_its_machine() {
    let one_each = with(&TASK, &[("SLURM_STEP_NUM_TASKS", "3")]);
    let machine = machine_of(&one_each).unwrap().unwrap();
    assert_eq!((machine.number, machine.machines, machine.ranks), (1, 3, None));
    assert_eq!(machine.master.as_deref(), Some("gpu07:13058"));
    let several = machine_of(&TASK).unwrap_err();
    assert!(
        several.contains("6 tasks on 3 machines") && several.contains("--ntasks-per-node=1"),
        "{several}"
    );
}

#[test]
fn restarts_of_torchrun_and_of_the_queue_count() {
    assert_eq!(restarts(lookup(&[])), 0);
    assert_eq!(restarts(lookup(&[("TORCHELASTIC_RESTART_COUNT", "2"), ("SLURM_RESTART_COUNT", "1")])), 3);
    assert_eq!(restarts(lookup(&[("SLURM_RESTART_COUNT", "many")])), 0);
}
