package acp

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestDrainFlood: a descendant that has left the group writes faster than the
// consumer takes events. The clock of the drain bound stands for as much as the
// runtime may have left behind, and no longer.
func TestDrainFlood(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		line := chunk(strings.Repeat("x", 900)) + "\n"
		r.stdout.set(func() { r.stdout.room = 64 << 10 })
		r.began(func(wire) {
			r.onSignal = func(bool) {}
			r.die("exit status 0", 0)
			go func() { // ends when we close our end
				out := end{pipe: r.stdout}
				for {
					if _, err := out.Write([]byte(line)); err != nil {
						return
					}
					time.Sleep(time.Microsecond) // the bubble's clock runs on
				}
			}()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		const each = time.Millisecond
		o := <-r.goTurn(ctx, func(Event) { time.Sleep(each) })
		wantError(t, o.err, ErrPortExit, undrained)
		most := drainBound + each*time.Duration(drainMost/len(line)+queueBound+3*eventBatch)
		if o.took < drainBound || o.took > most {
			t.Errorf("it took %v, want %v to %v", o.took, drainBound, most)
		}
	})
}
