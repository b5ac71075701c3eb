//! H28, H30: peers are authentic, and no key meets a counter twice.

use super::{Story, received, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::{Config, World};
use rerail_core::wire::hello::{Accept, Hello};
use rerail_core::wire::{Address, PublicKey, Token};
use rerail_core::{Health, Identity};

/// What a rank of the job knows of process `p`: its address, and its public key from their handshake.
fn known(w: &World, p: usize) -> (Address, PublicKey) {
    let address = w.addresses[w.endpoint(p, 0)].clone();
    let key = Identity::toy(address.token).public_key();
    (address, key)
}

/// A rank that holds every token of the job sends hellos and accepts to process 1 in the name of process 0. It has the
/// private key of neither. With and without encryption; on paths that are connected, with epochs above all others.
pub fn third_rank(story: &Story) {
    for (seed, encrypt) in [(1, false), (2, true), (3, false)] {
        let mut cfg = Config::quiet(seed, 2);
        cfg.hosts = vec![vec![0, 1]; 3];
        cfg.procs = vec![0, 1, 2];
        cfg.encrypt = encrypt;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let (victim, _) = known(&w, 1);
        let (name, key) = known(&w, 0);
        let third = Identity::toy(known(&w, 2).0.token);
        let own = third.pair(&known(&w, 1).1).expect("a proper key");
        let paths: Vec<u16> = w.paths(1).iter().map(|x| x.path.0).collect();
        let downs = |w: &World| (0..2).map(|p| w.counters(p).paths_down).sum::<u64>();
        let before = downs(&w);
        for round in 0..20_u8 {
            for &path in &paths {
                let epoch = 1000 + u32::from(round);
                let session_key = encrypt.then(|| third.clone().begin_session().public_key());
                let from = name.clone();
                let nonce = [round; 16];
                let hello =
                    Hello { path, epoch, stream: 0, lane: 0, nonce, from, public_key: key, session_key };
                let answer = [7; 16];
                let accept =
                    Accept { path, epoch, stream: 0, lane: 0, nonce, public_key: key, session_key, answer };
                for net in 0..2 {
                    for proof in [None, Some(&own)] {
                        w.inject(2, 1, net, hello.to_bytes(&victim.token, proof).to_vec());
                    }
                    let accept = accept.to_bytes(&name.token, &victim.token, &own, session_key.as_ref());
                    w.inject(2, 1, net, accept.to_vec());
                }
            }
            w.recv(RecvSpec::class(1, 1, 64));
            let id = w.send_soon(SendSpec::tagged(0, 1, 1, 10));
            assert!(w.run_finely(1_000 * MS, |w| received(w, id)), "live: {}", w.describe());
        }
        assert_eq!(downs(&w), before, "authentic: a third rank has ended a path between two others");
        assert!(w.paths(1).iter().all(|x| x.health == Health::Up));
        w.heal_and_finish();
    }
}

/// A rank that sends a hello in another's name before the two have met delays them by a round trip, and no more: its
/// hello is forgotten when the genuine process proves itself.
pub fn third_rank_first(story: &Story) {
    for (seed, encrypt) in [(1, false), (2, true)] {
        let mut cfg = Config::quiet(seed, 2);
        cfg.hosts = vec![vec![0, 1]; 3];
        cfg.procs = vec![0, 1, 2];
        cfg.encrypt = encrypt;
        let mut w = story.world(cfg);
        let (victim, _) = known(&w, 1);
        let (mut name, key) = known(&w, 0);
        name.rails = known(&w, 2).0.rails;
        let session_key = encrypt.then(|| Identity::toy(Token([9; 16])).public_key());
        for path in [0, 1, 0x100, 0x101] {
            let (epoch, from) = (1 << 20, name.clone());
            let hello =
                Hello { path, epoch, stream: 0, lane: 0, nonce: [1; 16], from, public_key: key, session_key };
            for net in 0..2 {
                w.inject(2, 1, net, hello.to_bytes(&victim.token, None).to_vec());
            }
        }
        w.run_for(MS);
        // process 1 knows the address of process 0 only from the forged hello
        w.recv(RecvSpec::class(1, 1, 64));
        let id = w.send_soon(SendSpec::tagged(0, 1, 1, 10));
        assert!(w.run_finely(1_000 * MS, |w| received(w, id)), "live: {}", w.describe());
        w.heal_and_finish();
    }
}

/// Sessions are renewed again and again, by one side or both at once, while datagrams are lost, repeated and reordered.
/// No key meets a counter twice, and every message arrives.
pub fn renewed(story: &Story) {
    for seed in 0..6 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.hosts = vec![vec![0, 1]; 2];
        cfg.procs = vec![0, 1];
        cfg.encrypt = true;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let faults =
            [Fault::Loss { net: 0, host: 0, ppm: 100_000 }, Fault::Dup { net: 1, host: 1, ppm: 200_000 }];
        for f in faults {
            w.begin(f);
        }
        for round in 0..8_u8 {
            for p in 0..2 {
                if (u64::from(round) + seed) % 3 != p as u64 {
                    w.with_engine(p, |_, e, now| e.renew_sessions(&[round; 32], now));
                }
            }
            for (a, b) in [(0, 1), (1, 0)] {
                w.recv(RecvSpec::class(b, 1, 64));
                let id = w.send_soon(SendSpec::tagged(a, b, 1, 10));
                assert!(w.run_finely(5_000 * MS, |w| received(w, id)), "live: {}", w.describe());
            }
        }
        w.heal_and_finish();
    }
}
