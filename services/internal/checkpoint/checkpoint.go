// Package checkpoint reads and writes the files in which the kubelet keeps what it has granted to pods.
//
// Each of these files is a JSON object with the data, mostly as a string of JSON, and a checksum of the data. The
// kubelet does not start when one of them is damaged. This package reports the damage instead, and sets the file aside.
// It keeps the fields that it does not know, so that a file of a later version loses nothing.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	"k8s.io/utils/dump"
)

// Format is how one kind of file is written.
type Format struct {
	// Data and Checksum are the names of the two fields.
	Data, Checksum string
	// Sum returns the checksum of the data, which is one JSON text.
	Sum func(data []byte) (uint64, error)
	// Object says that the data is in the file as it is, and not as a string.
	Object bool
}

// Content is what a file holds.
type Content struct {
	// Data is one JSON text.
	Data []byte
	// Others are the fields beside the data and its checksum.
	Others map[string]json.RawMessage
}

// Sum returns the checksum that the kubelet computes of most values. The value's type counts with its name and that of
// its package.
func Sum(value any) uint64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dump.ForHash(value))) // a hash takes every byte
	return uint64(hash.Sum32())
}

// SumOfText is the Sum of the data as a string.
func SumOfText(data []byte) (uint64, error) { return Sum(string(data)), nil }

// Decode returns what a file holds, if the checksum is that of the data.
func (f Format) Decode(file []byte) (Content, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(file, &fields); err != nil {
		return Content{}, fmt.Errorf("it is no JSON object: %w", err)
	}
	data, err := f.data(fields[f.Data])
	if err != nil {
		return Content{}, err
	}
	if fields[f.Checksum] == nil {
		return Content{}, fmt.Errorf("it has no field %s", f.Checksum)
	}
	var given uint64
	if err := json.Unmarshal(fields[f.Checksum], &given); err != nil {
		return Content{}, fmt.Errorf("field %s: %w", f.Checksum, err)
	}
	sum, err := f.Sum(data)
	if err != nil {
		return Content{}, fmt.Errorf("compute the checksum of field %s: %w", f.Data, err)
	}
	if given != sum {
		return Content{}, fmt.Errorf("field %s is %d, and the checksum of field %s is %d", f.Checksum, given, f.Data, sum)
	}
	return Content{Data: data, Others: without(fields, f.Data, f.Checksum)}, nil
}

func (f Format) data(field json.RawMessage) ([]byte, error) {
	if field == nil {
		return nil, fmt.Errorf("it has no field %s", f.Data)
	}
	if f.Object {
		return field, nil
	}
	var text string
	if err := json.Unmarshal(field, &text); err != nil {
		return nil, fmt.Errorf("field %s: %w", f.Data, err)
	}
	return []byte(text), nil
}

// Encode returns the file that holds this.
func (f Format) Encode(c Content) ([]byte, error) {
	data := c.Data
	if f.Object {
		// This is how it is in the file, of which a reader computes the checksum.
		compact := bytes.Buffer{}
		if err := json.Compact(&compact, data); err != nil {
			return nil, fmt.Errorf("encode field %s: %w", f.Data, err)
		}
		data = compact.Bytes()
	}
	if !utf8.Valid(data) { // JSON would have other bytes than those of the checksum
		return nil, fmt.Errorf("field %s is no UTF-8", f.Data)
	}
	sum, err := f.Sum(data)
	if err != nil {
		return nil, fmt.Errorf("compute the checksum of field %s: %w", f.Data, err)
	}
	if !f.Object {
		if data, err = json.Marshal(string(data)); err != nil {
			return nil, fmt.Errorf("encode field %s: %w", f.Data, err)
		}
	}
	return Join(fmt.Appendf(nil, "{%q:%s,%q:%d}", f.Data, data, f.Checksum, sum),
		without(c.Others, f.Data, f.Checksum))
}

// Unknown returns the fields of a JSON object but those of the names, in any case of letters: encoding/json reads them
// in any, too.
func Unknown(object []byte, names ...string) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return nil, err
	}
	return without(fields, names...), nil
}

func without(fields map[string]json.RawMessage, names ...string) map[string]json.RawMessage {
	var others map[string]json.RawMessage
fields:
	for field, value := range fields {
		for _, name := range names {
			if strings.EqualFold(field, name) {
				continue fields
			}
		}
		if others == nil {
			others = map[string]json.RawMessage{}
		}
		others[field] = value
	}
	return others
}

// Join adds fields to a JSON object that has none of their names. They come last, in the order of their names.
func Join(object []byte, others map[string]json.RawMessage) ([]byte, error) {
	if len(others) == 0 {
		return object, nil
	}
	more, err := json.Marshal(others)
	if err != nil {
		return nil, err
	}
	joined := bytes.Clone(bytes.TrimSuffix(bytes.TrimSpace(object), []byte("}")))
	if len(joined) > 1 {
		joined = append(joined, ',')
	}
	return append(joined, more[1:]...), nil
}
