package interop

import (
	"maps"
	"slices"
)

// node is a schema as it stands in the file.
type node = map[string]any

// generator makes instances of a schema: for each choice at least one.
type generator struct{ defs map[string]any }

// flat resolves references and merges allOf, so that a node says all by itself.
func (g generator) flat(n node) node {
	out := node{}
	maps.Copy(out, n)
	delete(out, "$ref")
	delete(out, "allOf")
	var parts []any
	if ref, ok := n["$ref"].(string); ok {
		parts = append(parts, g.defs[ref[len("#/$defs/"):]])
	}
	all, _ := n["allOf"].([]any)
	for _, part := range append(parts, all...) {
		for key, v := range g.flat(part.(node)) {
			switch old := out[key].(type) {
			case nil:
				out[key] = v
			case node: // properties
				if key == "properties" {
					merged := maps.Clone(v.(node))
					maps.Copy(merged, old)
					out[key] = merged
				}
			case []any: // required
				if key == "required" {
					out[key] = append(slices.Clone(old), v.([]any)...)
				}
			}
		}
	}
	return out
}

// branches returns the alternatives of a node, each merged with what all share.
func (g generator) branches(n node) []node {
	n = g.flat(n)
	for _, key := range []string{"oneOf", "anyOf"} {
		alternatives, ok := n[key].([]any)
		if !ok {
			continue
		}
		shared := maps.Clone(n)
		delete(shared, key)
		var all []node
		for _, alt := range alternatives {
			all = append(all, g.branches(node{"allOf": []any{alt, shared}})...)
		}
		return all
	}
	types, ok := n["type"].([]any)
	if !ok {
		return []node{n}
	}
	var all []node
	for _, t := range types {
		one := maps.Clone(n)
		one["type"] = t
		all = append(all, one)
	}
	return all
}

// all returns instances of a node, the plainest first.
func (g generator) all(n node) []any {
	var out []any
	for _, b := range g.branches(n) {
		out = append(out, g.of(b)...)
	}
	return out
}

func (g generator) of(n node) []any {
	if v, ok := n["const"]; ok {
		return []any{v}
	}
	if v, ok := n["enum"].([]any); ok {
		return v
	}
	switch n["type"] {
	case "null":
		return []any{nil}
	case "boolean":
		return []any{true, false}
	case "integer":
		return []any{3}
	case "number":
		return []any{2.5}
	case "string":
		return []any{"text", ""}
	case "array":
		return g.arrays(n)
	case "object":
		return g.objects(n)
	}
	return []any{"anything", map[string]any{"any": 1}, nil} // no type: any value
}

func (g generator) arrays(n node) []any {
	out := []any{[]any{}}
	item, ok := n["items"].(node)
	if !ok {
		return out
	}
	for _, v := range g.all(item) {
		out = append(out, []any{v})
	}
	return out
}

// objects returns one object with the required fields, one with all, and one
// more for each further choice of a field.
func (g generator) objects(n node) []any {
	props, _ := n["properties"].(node)
	required := map[string]bool{}
	list, _ := n["required"].([]any)
	for _, name := range list {
		required[name.(string)] = true
	}
	least, most := map[string]any{}, map[string]any{}
	choices := map[string][]any{}
	for name, p := range props {
		choices[name] = g.all(p.(node))
		most[name] = choices[name][0]
		if required[name] {
			least[name] = choices[name][0]
		}
	}
	out := []any{any(least)}
	if len(most) > len(least) {
		out = append(out, most)
	}
	for _, name := range slices.Sorted(maps.Keys(choices)) {
		for _, v := range choices[name][1:] {
			with := maps.Clone(most)
			with[name] = v
			out = append(out, with)
		}
	}
	return out
}

// A fault is an instance with one field spoiled.
type fault struct {
	path, how string
	value     any
	vital     bool // the field is required, and so is all that holds it
}

// faults spoils each field of an instance in turn: missing, null, of a wrong type.
func (g generator) faults(n node, value any, path string, vital bool) []fault {
	var out []fault
	b, ok := g.matching(n, value)
	if !ok {
		return nil
	}
	switch v := value.(type) {
	case map[string]any:
		props, _ := b["properties"].(node)
		required, _ := b["required"].([]any)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			p, ok := props[name].(node)
			if !ok {
				continue
			}
			must := vital && slices.Contains(required, any(name))
			put := func(how string, x any, vital bool) {
				with := maps.Clone(v)
				with[name] = x
				out = append(out, fault{path + "." + name, how, with, vital})
			}
			without := maps.Clone(v)
			delete(without, name)
			out = append(out, fault{path + "." + name, "missing", without, must})
			put("null", nil, must)
			for how, wrong := range wrongs(g.branches(p)) {
				put(how, wrong, must)
			}
			for _, f := range g.faults(p, v[name], path+"."+name, must) {
				with := maps.Clone(v)
				with[name] = f.value
				out = append(out, fault{f.path, f.how, with, f.vital})
			}
		}
	case []any:
		item, ok := b["items"].(node)
		if !ok || len(v) == 0 {
			break
		}
		vital = vital && b["x-deserialize-skip-invalid-items"] != true
		out = append(out, fault{path + "[0]", "null", []any{nil}, vital})
		for _, f := range g.faults(item, v[0], path+"[0]", vital) {
			out = append(out, fault{f.path, f.how, []any{f.value}, f.vital})
		}
	}
	return out
}

// wrongs returns values that none of the alternatives takes.
func wrongs(alternatives []node) map[string]any {
	candidates := map[string]any{"a string": "wrong", "a number": 7, "a boolean": true, "a list": []any{}, "an object": map[string]any{}}
	kinds := map[string]string{"string": "a string", "integer": "a number", "number": "a number", "boolean": "a boolean", "array": "a list", "object": "an object"}
	for _, n := range alternatives {
		kind, ok := n["type"].(string)
		if !ok {
			return nil // takes any value
		}
		if _, fixed := n["const"]; !fixed {
			delete(candidates, kinds[kind])
		}
	}
	return candidates
}

// matching returns the alternative that a value was made from: the one whose
// fixed fields it has.
func (g generator) matching(n node, value any) (node, bool) {
	for _, b := range g.branches(n) {
		switch v := value.(type) {
		case []any:
			if b["type"] == "array" {
				return b, true
			}
		case map[string]any:
			props, _ := b["properties"].(node)
			fits := b["type"] == "object"
			for name, p := range props {
				fixed, is := g.flat(p.(node))["const"]
				fits = fits && (!is || v[name] == fixed)
			}
			if fits {
				return b, true
			}
		}
	}
	return nil, false
}
