//! Faults that a user plants in this process, at its start (option `faults`) or while it runs (`rerail faults`).
//!
//! The ports are wrapped when the first fault is planted (with encryption: at the start). Until then a process uses the
//! plain ports; the only cost is one check for each call on a datagram port. Once made, the layer stays; after `clear`
//! it passes every call through. Every change is logged and reported as an event, so that a planted fault is not
//! mistaken for a real one.

use crate::events::Field;
use crate::progress::{Planted, State};
use crate::{Inner, LogLevel, StartError};
use rerail_fault::{Counts, FaultyDatagrams, FaultyStreams, Injector, Plan};
use rerail_rail::StreamPort;
use rerail_seal::{Keyring, SealedDatagrams, SealedStreams};
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The plan of an option; `None`: the option is empty.
pub(crate) fn planned(text: &str, rails: &[&str]) -> Result<Option<Plan>, String> {
    if text.is_empty() { Ok(None) } else { Plan::parse(text, rails).map(Some) }
}

fn names(inner: &Inner) -> Vec<&str> {
    inner.rails.iter().map(|rail| rail.name.as_str()).collect()
}

/// Plants the faults of the option, before the ports are in use. With encryption the layer is always made: it lies
/// below the layer that encrypts, and could not be inserted there later.
pub(crate) fn plant_at_start(
    inner: &Inner,
    text: &str,
    keys: Option<&Arc<Keyring>>,
) -> Result<(), StartError> {
    let plan = planned(text, &names(inner)).map_err(StartError::Faults)?;
    let system = |what| move |why| StartError::System { what, why };
    let planted = plan.is_some();
    if planted || keys.is_some() {
        force(inner, &mut inner.state.lock(), plan.unwrap_or_default()).map_err(system("plant faults"))?;
    }
    if let (Some(keys), Some(planted)) = (keys, inner.outside.planted.get()) {
        let mut state = inner.state.lock();
        let sealed = state.streams.wrap(|port| {
            let sealed = SealedStreams::new(port, keys.clone())?;
            Ok(Box::new(sealed) as Box<dyn StreamPort>)
        });
        sealed.map_err(system("prepare encryption"))?;
        inner.streams_fd.store(state.streams_fd(), Ordering::Release);
        inner.outside.sealed.get_or_init(|| SealedDatagrams::new(planted.datagrams.clone(), keys.clone()));
    }
    if planted {
        announce(inner);
    }
    Ok(())
}

/// Puts a plan into force; the layer is made with the first.
fn force(inner: &Inner, state: &mut State, plan: Plan) -> io::Result<()> {
    let planted = match inner.outside.planted.get() {
        Some(planted) => planted,
        None => {
            let injector = Injector::new(names(inner).iter().map(ToString::to_string).collect());
            let datagrams = Arc::new(FaultyDatagrams::new(inner.outside.plain.clone(), injector.clone())?);
            state.streams.wrap(|port| {
                let faulty = FaultyStreams::new(port, injector.clone())?;
                Ok(Box::new(faulty) as Box<dyn StreamPort>)
            })?;
            inner.streams_fd.store(state.streams_fd(), Ordering::Release);
            // The engine's lock is held, so no other thread can have set it.
            inner.outside.planted.get_or_init(|| Planted { injector, datagrams })
        }
    };
    planted.injector.set(plan);
    Ok(())
}

/// Reports the faults that are in force from now on, in the log and as an event. Not to be called under the engine's
/// lock.
pub(crate) fn announce(inner: &Inner) {
    let text = inner.outside.planted.get().map_or(String::new(), |planted| planted.injector.text());
    let (event, line) = match text.as_str() {
        "" => ("faults_cleared", "no faults are planted in this process any more".to_owned()),
        text => ("faults_planted", format!("faults are planted in this process from now on: {text}")),
    };
    inner.outside.events.tell(LogLevel::Warn, event, &line, |f| f("faults", Field::Text(&text)));
}

/// Plants faults in the place of all earlier ones. The caller calls [`announce`] afterwards.
pub(crate) fn set(inner: &Inner, state: &mut State, text: &str) -> Result<String, String> {
    let plan = Plan::parse(text, &names(inner))?;
    force(inner, state, plan).map_err(|why| format!("faults cannot be planted: {why}"))?;
    // Wakes the sleepers: they sleep on the descriptors of the old ports.
    inner.outside.bell.ring();
    inner.doorbell.ring();
    Ok(show(inner))
}

/// Ends all faults.
pub(crate) fn clear(inner: &Inner) -> String {
    if let Some(planted) = inner.outside.planted.get() {
        planted.injector.set(Plan::default());
        announce(inner);
    }
    show(inner)
}

/// The plan in force, and what was done so far.
pub(crate) fn show(inner: &Inner) -> String {
    let Some(planted) = inner.outside.planted.get() else { return "faults none\n".to_owned() };
    let injector = &planted.injector;
    let text = injector.text();
    let mut out = match text.as_str() {
        "" => "faults none\n".to_owned(),
        text => format!("faults {text}\nsince_s={:.1}\n", injector.age().as_secs_f64()),
    };
    for (rail, counts) in injector.counts() {
        let _ = writeln!(out, "rail={rail}{}", words(&counts));
    }
    out
}

fn words(counts: &Counts) -> String {
    let mut s = String::new();
    counts.each(|name, value| {
        let _ = write!(s, " {name}={value}");
    });
    s
}

/// Reports at the end how many faults each rail had in the process's life.
pub(crate) fn sum_up(inner: &Inner) {
    let Some(planted) = inner.outside.planted.get() else { return };
    for (rail, counts) in planted.injector.counts().filter(|(_, counts)| !counts.is_zero()) {
        let line = format!("faults that were planted: rail={rail}{}", words(&counts));
        inner.outside.events.tell(LogLevel::Warn, "faults_counted", &line, |f| {
            f("rail", Field::Text(rail));
            counts.each(|name, value| f(name, Field::Number(value)));
        });
    }
}
