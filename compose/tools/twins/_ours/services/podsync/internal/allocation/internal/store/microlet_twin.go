package store

import "k8s.io/apimachinery/pkg/types"

// TwinFile is the file of a store with these pods.
func TwinFile(pods map[types.UID]PodResources) (string, error) {
	entries := map[types.UID]entry{}
	for uid, r := range pods {
		e, err := entry{}.with(func(is *PodResources) { *is = r.clone() })
		if err != nil {
			return "", err
		}
		entries[uid] = e
	}
	content, err := kept{}.content(entries)
	if err != nil {
		return "", err
	}
	file, err := format.Encode(content)
	return string(file), err
}
