package store

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/checkpoint"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// TwinFile is the file of a store with these pods.
func TwinFile(pods map[types.UID]pod.Resources) (string, error) {
	entries := map[types.UID]entry{}
	for uid, r := range pods {
		e, err := entry{}.with(r)
		if err != nil {
			return "", err
		}
		entries[uid] = e
	}
	return twinEncode(entries, kept{})
}

func twinEncode(entries map[types.UID]entry, k kept) (string, error) {
	content, err := k.content(entries)
	if err != nil {
		return "", err
	}
	file, err := format.Encode(content)
	return string(file), err
}

// TwinRead is what a store reads in a file with this data, and what it would write without a change, and after a change
// of each pod that changes nothing.
func TwinRead(data string) (pods map[types.UID]pod.Resources, same, changed string, err error) {
	entries, k, skipped, err := parse(checkpoint.Content{Data: []byte(data)})
	if err != nil {
		return nil, "", "", err
	}
	if same, err = twinEncode(entries, k); err != nil {
		return nil, "", "", err
	}
	pods = map[types.UID]pod.Resources{}
	for uid, e := range entries {
		pods[uid] = e.resources
		if entries[uid], err = e.with(e.resources); err != nil {
			return nil, "", "", err
		}
	}
	if changed, err = twinEncode(entries, k); err != nil {
		return nil, "", "", err
	}
	return pods, same, changed, skipped
}
