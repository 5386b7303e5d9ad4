"""Everyday nouns: what a person may look for among photos, whatever is in them.

They tell a text encoder where single words are when an engine has no texts of its own, and which words are known.
"""

from __future__ import annotations

_TEXT = """
airplane airport alley animal apartment apple arm autumn baby backpack bag bakery balcony ball balloon banana band
bar barn basket bathroom beach bear bed bedroom bee beer bench bicycle bird birthday blanket blossom boat book
bottle bowl box boy branch bread breakfast bridge brother building bus bush butterfly cabin cafe cake camel camera
camp campfire candle car carnival carpet castle cat cathedral cave chair cheese cherry chicken child chocolate
church city classroom cliff clock cloud coast coat coffee computer concert cook cow cross crowd cup curtain dance
dancer desert desk dessert dinner dog door dress drink drum duck egg elephant evening eye face factory fair family
farm father fence ferry festival field fire fireworks fish fishing flag flower fog food football forest fountain fox
friend frog fruit garden gate girl glacier glass goat gold grandmother grape grass group guitar hair hall hand
harbour hat helmet hiking hill hockey holiday horse hospital hotel house ice iceberg insect island jacket jeans
jungle kitchen kite knife lake lamp landscape laptop leaf leg lemon library light lighthouse lion lizard llama
luggage lunch man map market mask meadow meal meat medal microphone milk mirror monkey monument moon mosque mother
motorcycle mountain mouse mouth museum mushroom music musician night ocean office orange owl painting palace palm
panda park party path people person phone photo piano picnic pig pizza plant plate player playground pond pool
portrait potato pumpkin rabbit race rain rainbow restaurant rice river road rock roof room rope rose ruin sailing
salad sand sandwich school sculpture sea seagull seal seat shadow shark sheep shell ship shirt shoe shop sign sister
skiing sky skyscraper smile smoke snake snow soccer sofa soldier soup spider spoon sport spring square squirrel
stadium stage stairs star station statue stone storm strawberry street student suit suitcase summer sun sunflower
sunglasses sunrise sunset surfing swan sweater swimming table tea teacher team telescope television temple tennis
tent theatre tiger tomato tool tower town toy tractor train tram tree truck turtle umbrella uniform valley vase
vegetable village vineyard violin volcano waiter wall watch water waterfall wave wedding whale wheel window wine
winter wolf woman wood zebra zoo
"""
NOUNS = tuple(_TEXT.split())
