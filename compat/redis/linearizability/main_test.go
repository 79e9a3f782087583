package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/anishathalye/porcupine"
)

// one returns an operation on key k.
func one(client int, call, end int64, kind kind, number int64, out output) porcupine.Operation {
	return porcupine.Operation{
		ClientId: client, Call: call, Return: end, Input: input{kind: kind, key: "k", number: number}, Output: out,
	}
}

func TestWhatFitsToAnOrderIsTakenAndWhatDoesNotIsRefused(t *testing.T) {
	saw := func(number int64) output { return output{value: some(number)} }
	none, done, lost := output{}, output{done: true}, output{unknown: true}
	for name, each := range map[string]struct {
		fits    bool
		history []porcupine.Operation
	}{
		"a read of the newest": {true, []porcupine.Operation{
			one(0, 1, 2, set, 1, none), one(0, 3, 4, set, 2, none), one(1, 5, 6, get, 0, saw(2)),
		}},
		"a stale read": {false, []porcupine.Operation{
			one(0, 1, 2, set, 1, none), one(0, 3, 4, set, 2, none), one(1, 5, 6, get, 0, saw(1)),
		}},
		"an old value while the new one is set": {true, []porcupine.Operation{
			one(0, 1, 2, set, 1, none), one(0, 3, 9, set, 2, none), one(1, 5, 6, get, 0, saw(1)),
		}},
		"the old value after another client read the new one": {false, []porcupine.Operation{
			one(0, 1, 2, set, 1, none), one(0, 3, 9, set, 2, none),
			one(1, 4, 5, get, 0, saw(2)), one(2, 6, 7, get, 0, saw(1)),
		}},
		"a lost update": {false, []porcupine.Operation{
			one(0, 1, 5, incrBy, 1, saw(1)), one(1, 1, 5, incrBy, 1, saw(1)),
		}},
		"two setNX of a missing key": {false, []porcupine.Operation{
			one(0, 1, 5, setNX, 1, done), one(1, 1, 5, setNX, 2, done),
		}},
		"two setNX of a missing key with a del between": {true, []porcupine.Operation{
			one(0, 1, 5, setNX, 1, done), one(1, 1, 5, setNX, 2, done), one(2, 1, 5, del, 0, done),
		}},
		"two compareAndSet with equal values": {false, []porcupine.Operation{
			one(0, 1, 5, compareAndSet, 1, done), one(1, 1, 5, compareAndSet, 2, done),
		}},
		"a compareAndSet without effect": {true, []porcupine.Operation{
			one(0, 1, 5, compareAndSet, 1, done), one(1, 1, 5, compareAndSet, 2, none), one(1, 6, 7, get, 0, saw(1)),
		}},
		"an old value read twice": {false, []porcupine.Operation{
			one(0, 1, 2, set, 1, none), one(1, 3, 6, getSet, 2, saw(1)), one(2, 3, 6, getSet, 3, saw(1)),
		}},
		"a del of a missing key": {false, []porcupine.Operation{one(0, 1, 2, del, 0, done)}},
		"no reply, and executed later": {true, []porcupine.Operation{
			one(0, 1, math.MaxInt64, set, 1, lost), one(1, 3, 4, get, 0, none), one(1, 5, 6, get, 0, saw(1)),
		}},
		"no reply, and never executed": {true, []porcupine.Operation{
			one(0, 1, math.MaxInt64, incrBy, 1, lost), one(1, 3, 4, get, 0, none),
		}},
		"no reply, and executed twice": {false, []porcupine.Operation{
			one(0, 1, math.MaxInt64, incrBy, 1, lost), one(1, 3, 4, get, 0, saw(2)),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			html := filepath.Join(t.TempDir(), "drawn.html")
			if err := check(each.history, html); (err == nil) != each.fits {
				t.Fatal(err)
			}
			if _, err := os.Stat(html); os.IsNotExist(err) != each.fits {
				t.Fatal("only invalid histories may be drawn:", err)
			}
		})
	}
}
