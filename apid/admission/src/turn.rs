//! Pauses of long work in admission, so that the other tasks of a thread run.

use std::time::Duration;

use apimachinery::clock::Clock;

/// Time that the work of a write takes before other tasks run.
const TURN: Duration = Duration::from_millis(1);

/// The turn of a write on its thread. Work that consists of many short steps pauses between them.
pub(crate) struct Turn<'c> {
    clock: &'c dyn Clock,
    started: Duration,
}

impl<'c> Turn<'c> {
    /// Begins a turn.
    pub(crate) fn new(clock: &'c dyn Clock) -> Self {
        Turn { clock, started: clock.monotonic() }
    }

    /// Lets other tasks run if the turn is over, and begins the next turn.
    pub(crate) async fn pause(&mut self) {
        if self.clock.monotonic().saturating_sub(self.started) >= TURN {
            tokio::task::yield_now().await;
            self.started = self.clock.monotonic();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use apimachinery::clock::ManualClock;

    use super::*;

    #[test]
    fn long_work_in_short_steps_yields_to_other_tasks() {
        let clock = ManualClock::at(jiff::Timestamp::UNIX_EPOCH);
        let steps = async {
            let mut turn = Turn::new(&clock);
            for milliseconds in [0, 0, 1, 0, 5, 0] {
                clock.advance(Duration::from_millis(milliseconds));
                turn.pause().await;
            }
        };
        let (mut steps, mut context) = (pin!(steps), Context::from_waker(Waker::noop()));
        let pauses =
            std::iter::repeat_with(|| steps.as_mut().poll(&mut context)).take_while(|poll| poll.is_pending());
        assert_eq!(pauses.count(), 2);
    }
}
