//! An engine by itself, on one rail, for tests that play the world around it.

use rerail_core::wire::Token;
use rerail_core::{CqId, Engine, EngineConfig, EpId, Identity, Options, RailDesc, Remedies, Time};

/// The engine of process `token` at 10.0.0.1 port 4000, with one endpoint and its queue, and the time it was made at.
pub fn engine(token: Token, options: Options, encrypts: bool) -> (Engine, CqId, EpId, Time) {
    engine_on(rail(), token, options, encrypts)
}

/// Its rail.
pub fn rail() -> RailDesc {
    RailDesc { speed_mbps: 1000, ..RailDesc::ip("eth0", ([10, 0, 0, 1], 4000).into(), 24, 1500) }
}

/// The same, on a rail of the test's choice.
pub fn engine_on(
    rail: RailDesc,
    token: Token,
    options: Options,
    encrypts: bool,
) -> (Engine, CqId, EpId, Time) {
    let config = EngineConfig {
        identity: Identity::toy(token),
        rails: vec![rail],
        options,
        encrypts,
        seed: 1,
        host: 1,
        boot: 1,
        remedies: Remedies::default(),
    };
    let now = Time::from_ns(1_000_000_000);
    let mut engine = Engine::new(config, now).expect("a valid configuration");
    let cq = engine.open_cq(16);
    let ep = engine.open_endpoint(cq, cq).expect("the first");
    (engine, cq, ep, now)
}
