package main

import (
	"fmt"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// kind is the kind of an operation.
type kind int

const (
	get kind = iota
	set
	setNX
	incrBy
	del
	getSet
	// compareAndSet is WATCH, GET, MULTI, SET, EXEC.
	compareAndSet
	kinds
)

// value is the value of a key: a number, or none.
type value struct {
	number int64
	exists bool
}

func (v value) String() string {
	if v.exists {
		return strconv.FormatInt(v.number, 10)
	}
	return "nil"
}

func some(number int64) value { return value{number, true} }

type input struct {
	kind kind
	key  string
	// number is the number that is set or added.
	number int64
}

type output struct {
	// value is the value that was read: by get, getSet and compareAndSet before, by incrBy after the operation.
	value value
	// done is true if setNX, del or compareAndSet changed the key.
	done bool
	// unknown marks an operation without a reply: it may have been executed at any later time, or never.
	unknown bool
}

// model is a register for each key.
func model() porcupine.Model {
	return porcupine.Model{
		Partition: byKey,
		Init:      func() any { return value{} },
		Step: func(state, in, out any) (bool, any) {
			return step(state.(value), in.(input), out.(output))
		},
		DescribeOperation: func(in, out any) string { return describe(in.(input), out.(output)) },
		DescribeState:     func(state any) string { return state.(value).String() },
	}
}

func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	found := map[string][]porcupine.Operation{}
	for _, operation := range history {
		key := operation.Input.(input).key
		found[key] = append(found[key], operation)
	}
	parts := [][]porcupine.Operation{}
	for _, part := range found {
		parts = append(parts, part)
	}
	return parts
}

// step reports whether an operation may have this outcome in this state, and returns the value after it.
func step(state value, in input, out output) (bool, value) {
	switch in.kind {
	case get:
		return out.value == state, state
	case set:
		return true, some(in.number)
	case setNX:
		if out.unknown {
			out.done = !state.exists
		}
		if out.done {
			return !state.exists, some(in.number)
		}
		return state.exists, state
	case incrBy:
		after := some(state.number + in.number)
		return out.unknown || out.value == after, after
	case del:
		return out.unknown || out.done == state.exists, value{}
	case getSet:
		return out.unknown || out.value == state, some(in.number)
	case compareAndSet:
		if out.unknown && out.value != state {
			return true, state
		}
		if out.unknown || out.done {
			return out.value == state, some(in.number)
		}
		// Another client changed the key concurrently, so the operation had no effect.
		return true, state
	}
	panic("no such kind")
}

func describe(in input, out output) string {
	text := ""
	switch in.kind {
	case get:
		text = fmt.Sprintf("GET → %v", out.value)
	case set:
		text = fmt.Sprintf("SET %d", in.number)
	case setNX:
		text = fmt.Sprintf("SET %d NX → %t", in.number, out.done)
	case incrBy:
		text = fmt.Sprintf("INCRBY %d → %v", in.number, out.value)
	case del:
		text = fmt.Sprintf("DEL → %t", out.done)
	case getSet:
		text = fmt.Sprintf("GETSET %d → %v", in.number, out.value)
	case compareAndSet:
		text = fmt.Sprintf("%v to %d → %t", out.value, in.number, out.done)
	}
	if out.unknown {
		text += " (no answer)"
	}
	return text
}
